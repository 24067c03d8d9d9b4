"""A map-style Dataset of torch.utils.data as a custom_data_reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset, IterableDataset, default_collate

from shoal.base.nested import named_leaves
from shoal.errors import UserError

COLLATED = 1024
"""Records that are collated at once; minibatches are cut of them later."""


def reader(
    dataset: Any, collate_fn: Callable[[Sequence[Any]], Any] = default_collate
) -> Callable[..., DatasetReader]:
    """A `custom_data_reader` that gives the records of a map-style Dataset.

    dataset: the Dataset, or a function (or class) that makes one of what --training-data or another
    flag of data gives, a string. collate_fn: as that of a DataLoader. feed_batch gets a dict of
    columns, [records, ...] each: by the keys of the records, by "0", "1" and so on for tuples, and
    by paths such as "0/ids" for nested ones.

    Raises UserError for an IterableDataset, and for what is no Dataset.
    """
    _check(dataset, "dataset")

    def custom_data_reader(pattern: str, **arguments: Any) -> DatasetReader:
        made = dataset
        if isinstance(made, type) or not hasattr(made, "__getitem__"):
            made = dataset(pattern, **arguments)
            _check(made, "what the dataset function gives")
        if not (hasattr(made, "__len__") and hasattr(made, "__getitem__")):
            raise UserError(
                f"shoal.torch.reader: {type(made).__name__} has no __len__ and __getitem__, by "
                "which records are read by their numbers: give a map-style Dataset"
            )
        return DatasetReader(made, pattern or type(made).__name__, collate_fn)

    return custom_data_reader


def _check(dataset: Any, what: str) -> None:
    """Raises UserError for a dataset whose records have no numbers."""
    iterable = isinstance(dataset, IterableDataset) or (
        isinstance(dataset, type) and issubclass(dataset, IterableDataset)
    )
    if iterable:
        raise UserError(
            f"shoal.torch.reader: {what} is an IterableDataset, which has no record numbers, by "
            "which shoal gives each record once: give a map-style Dataset, with __len__ and "
            "__getitem__, or files that shoal reads itself (--training-data)"
        )
    if not callable(dataset) and not isinstance(dataset, Dataset):
        if hasattr(dataset, "__getitem__"):
            return
        raise UserError(
            f"shoal.torch.reader: {what} is a {type(dataset).__name__}; it must be a map-style "
            "Dataset, or a function that makes one"
        )


class DatasetReader:
    """One source with the records of a Dataset, as shoal.data.custom wants it."""

    def __init__(self, dataset: Any, name: str, collate: Callable[[Sequence[Any]], Any]) -> None:
        self._dataset, self._name, self._collate = dataset, name, collate

    def sources(self) -> list[tuple[str, int]]:
        """The only source, with its number of records."""
        return [(self._name, len(self._dataset))]

    def read(self, source: str, start: int, end: int) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """The records from start to end, in chunks of columns. Raises UserError for none."""
        del source
        for first in range(start, end, COLLATED):
            records = [self._dataset[i] for i in range(first, min(end, first + COLLATED))]
            collated = self._collate(records)
            yield {
                path or "0": self._column(path, values, len(records))
                for path, values in named_leaves(_joined_texts(collated))
            }

    def _column(self, path: str, values: Any, count: int) -> npt.NDArray[Any]:
        found = values.numpy() if hasattr(values, "numpy") else np.asarray(values)
        if found.shape[:1] != (count,):
            raise UserError(
                f"shoal.torch.reader: collate_fn gave the shape {found.shape} as {path or '0'!r} "
                f"of {count} records: the first axis must be of the records"
            )
        return found


def _joined_texts(collated: Any) -> Any:
    """The same with lists of texts, which default_collate leaves, as arrays."""
    if isinstance(collated, dict):
        return {key: _joined_texts(each) for key, each in collated.items()}
    if isinstance(collated, list | tuple):
        if collated and isinstance(collated[0], str | bytes):
            return np.array(
                [each.encode() if isinstance(each, str) else each for each in collated], object
            )
        return [_joined_texts(each) for each in collated]
    return collated
