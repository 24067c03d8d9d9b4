"""Parsers take or refuse whatever comes: a few seconds of it; `make fuzz` goes on for minutes."""

import random
import tracemalloc

import pytest

from tests.examples import examples
from tests.fuzz.mutations import mutated
from tests.fuzz.targets import TARGETS, Target, corpus

pytestmark = pytest.mark.slow

INPUTS = examples(400)
"""Of each target: the same ones each time."""

MEMORY_BYTES = 64 << 20
"""Of Python and NumPy; guided.py watches the whole process."""


def fuzz(target, name, inputs=INPUTS):
    """Each input that is neither taken nor refused, with its error; and how many are taken."""
    chance = random.Random(name)
    seeds = [*target.seeds(), *corpus(name)]
    found, taken = [], 0
    for _ in range(inputs):
        data = mutated(seeds, chance)
        try:
            taken += target.take(data)
        except Exception as error:
            found.append((data, repr(error)))
    return found, taken


@pytest.mark.parametrize("name", TARGETS)
def test_a_parser_takes_or_refuses_whatever_comes(name):
    target = TARGETS[name]
    # Refused ones would mean that nothing behind the first check is tried.
    assert all(target.take(seed) for seed in target.seeds())
    for kept in corpus(name):
        target.take(kept)
    found, _ = fuzz(target, name)
    assert found == []


def test_a_parser_that_raises_something_else_is_found():
    def parse(data):
        if len(data) > 3 and data[3] > 200:
            raise IndexError(data[3])
        raise ValueError

    found, taken = fuzz(Target(parse, lambda: [b"abcdef"], (ValueError,)), "planted")
    assert found
    assert (taken, {error.partition("(")[0] for _, error in found}) == (0, {"IndexError"})


def test_a_length_that_is_not_there_takes_no_memory():
    promise = b"\xff\xff\xff\x7f"
    for target in TARGETS.values():
        for seed in target.seeds():
            places = sorted({*range(0, min(len(seed), 64), 4), *range(0, len(seed), 97)})
            # What tells the memory of one input: the most of a process never falls again.
            tracemalloc.start()
            try:
                for at in places:
                    target.take(seed[:at] + promise + seed[at + len(promise) :])
                _, most = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert most < MEMORY_BYTES
