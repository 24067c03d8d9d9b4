"""The elements that the user's feed or feed_batch gives, and what they must be on any engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.errors import UserError
from shoal.worker.input.modes import PREDICTION


def split(element: Any, mode: str, feed: str) -> tuple[Any, Any, Any]:
    """Features, labels and weights of an element, a batch or a spec; None for no weights.

    feed: the function that gave it, for errors. Raises UserError if it is no pair or triple.
    """
    if mode == PREDICTION:
        return element, None, None  # a pair, too, is features: there are no labels
    if isinstance(element, tuple) and len(element) == 2:
        return *element, None
    if isinstance(element, tuple) and len(element) == 3:
        return element
    given = type(element).__name__
    if isinstance(element, tuple):
        given = f"a tuple of {len(element)}"
    raise UserError(
        f"{feed} must give (features, labels) or (features, labels, weights) in mode "
        f"{mode!r}, not {given}"
    )


def wrong_weights(given: str, feed: str) -> UserError:
    """The error of weights that are no numbers. given: their type."""
    return UserError(
        f"{feed} gives weights of the type {given}: they must be numbers, one a record"
    )


def check_lengths(
    feed: str,
    source: str,
    first: int,
    records: int,
    size: int,
    others: Mapping[str, Sequence[int]],
) -> None:
    """Raises UserError unless feed_batch gave one element for each record it got.

    first: number of the first of the `records`. size: of the features. others: labels and
    weights, the lengths of each array of theirs.
    """
    if size != records:
        raise UserError(
            f"{feed} gave {size} elements for the {records} records from {first} on of "
            f"{source}: it must give one per record; use feed() to drop or add records"
        )
    for what, lengths in others.items():
        for length in lengths:
            if length != size:
                raise UserError(
                    f"{feed} gave {length} {what} for {size} records of {source}: it must give "
                    "one per record"
                )
