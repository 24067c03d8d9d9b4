"""How many random cases a property is tried with: fewer in `make test-fast`."""

from hypothesis import settings

USUAL = 100
"""Hypothesis's own number, which the profiles of tests/conftest.py but `fast` leave as it is."""


def examples(count):
    """`count`, or its share in a profile that tries fewer than usual; at least five."""
    return max(min(count, 5), count * settings().max_examples // USUAL)
