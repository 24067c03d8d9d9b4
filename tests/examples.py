"""How many random cases a property is tried with: most in `make nightly`."""

from hypothesis import settings

USUAL = 100
"""Hypothesis's own number, which tests/conftest.py's profile `search` leaves as it is."""


def examples(count):
    """`count`, or its share in a profile that tries fewer or more; at least five."""
    return max(min(count, 5), count * settings().max_examples // USUAL)
