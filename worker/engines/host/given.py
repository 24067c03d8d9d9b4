"""Arrays of one spec for every minibatch, made of what feed_batch gives.

Owns which values are arrays, and what an array must be. That there is one element for each
record is told here for features, and in input/elements.py for labels and weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from shoal.base.nested import leaves, mapped, named_leaves
from shoal.data.columns import ListColumn
from shoal.errors import UserError
from shoal.worker.input.spec import ArraySpec

FEATURES, LABELS, WEIGHTS = "feature", "labels", "weights"

_KINDS = "biufO"
"""Of NumPy's types: bools, integers, floats, and texts as objects."""

Array = npt.NDArray[Any]


class Given:
    """Makes arrays of one part of what the function gives: features, labels or weights."""

    def __init__(self, feed: str, part: str) -> None:
        """feed: the function, for errors. part: FEATURES, LABELS or WEIGHTS."""
        self._feed = feed
        self._part = part

    def arrays(self, nested: Any) -> Any:
        """The arrays, nested as given, of native bytes; texts are objects of bytes.

        A list with arrays in it is a nest, as a dict is; any other list is an array. None stays
        where it stands in weights. Raises UserError for what is no array.
        """
        return self._arrays(nested, "")

    def _arrays(self, value: Any, path: str) -> Any:
        def within(key: Any, each: Any) -> Any:
            return self._arrays(each, f"{path}/{key}" if path else str(key))

        if isinstance(value, Mapping):
            return {key: within(key, each) for key, each in value.items()}
        if isinstance(value, tuple):
            made = [within(position, each) for position, each in enumerate(value)]
            return type(value)(*made) if hasattr(value, "_fields") else tuple(made)
        if isinstance(value, list) and any(map(_is_array, value)):
            return [within(position, each) for position, each in enumerate(value)]
        if value is None and self._part == WEIGHTS:
            return None
        return self._array(value, path)

    def _array(self, value: Any, path: str) -> Array:
        what = self._named(path)
        if isinstance(value, ListColumn):
            self._refuse(
                f"a column of lists as {what}: make one array of it, as column.padded(n) does, or "
                "give column.values and column.offsets"
            )
        if isinstance(value, np.ma.MaskedArray):
            self._refuse(f"a masked array as {what}: fill it, as with .filled(0)")
        try:
            array = np.asarray(value)
        except Exception as error:  # an array of any library may refuse it in its own words
            self._refuse(f"{_kind(value)} as {what}, which is no array: {error}")
        if array.ndim == 0:
            kind = "a single value" if np.isscalar(value) else _kind(value)
            self._refuse(f"{kind} as {what}, where it must give an array with an element a record")
        if array.dtype.kind in "SU":
            array = array.astype(object)
        if array.dtype.kind not in _KINDS:
            self._refuse(
                f"the type {array.dtype} as {what}: make numbers, bools or texts of it, as with "
                ".astype()"
            )
        if array.dtype.kind == "O":
            array = self._texts(array, what)
        elif not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        return array

    def _texts(self, array: Array, what: str) -> Array:
        values = array.ravel().tolist()
        kinds = {type(value) for value in values}
        if kinds <= {bytes}:
            return array
        if not kinds <= {bytes, str, np.bytes_, np.str_}:
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            self._refuse(
                f"objects ({names}) as {what}: an array holds numbers of one type or texts. Lists "
                "of several lengths are made one array by column.padded(n)"
            )
        made = np.empty(len(values), object)
        made[:] = [value.encode() if isinstance(value, str) else bytes(value) for value in values]
        return made.reshape(array.shape)

    # ------------------------------------------------------------ specs

    def spec(self, batches: list[Any]) -> Any:
        """The spec of all batches, whose arrays are as `arrays` makes them.

        Sizes in which they differ are None. Raises UserError where they differ in more.
        """
        return self._alike(self._spec, batches[0], *batches[1:])

    def _spec(self, path: str, *arrays: Array | None) -> ArraySpec | None:
        given = [each for each in arrays if each is not None]
        if len(given) < len(arrays):
            if given:
                self._refuse(f"{self._named(path)} in one minibatch, and None in another")
            return None
        first = given[0]
        dtype = first.dtype
        for other in given[1:]:
            if np.can_cast(dtype, other.dtype, "safe") and other.dtype.kind != "O":
                dtype = other.dtype
            self._check_type(other.dtype, dtype, path)
            if other.ndim != first.ndim:
                self._refuse_shape(other, (None, *first.shape[1:]), path)
        sizes = zip(*(each.shape[1:] for each in given), strict=True)
        inner = (size[0] if len(set(size)) == 1 else None for size in sizes)
        return ArraySpec((None, *inner), dtype)

    def fitted(self, arrays: Any, spec: Any) -> Any:
        """Arrays of exactly this spec. Raises UserError if they are others.

        A type that loses nothing by it is converted.
        """
        return self._alike(self._fitted, arrays, spec)

    def _fitted(self, path: str, array: Array | None, spec: ArraySpec | None) -> Array | None:
        if array is None or spec is None:
            if array is not None or spec is not None:
                self._refuse(f"{self._named(path)} in one minibatch, and None in another")
            return None
        if array.dtype != spec.dtype:
            self._check_type(array.dtype, spec.dtype, path)
            array = array.astype(spec.dtype)
        if array.ndim != len(spec.shape) or any(
            size not in (None, given) for size, given in zip(spec.shape, array.shape, strict=True)
        ):
            self._refuse_shape(array, spec.shape, path)
        return array

    def _alike(self, function: Any, nested: Any, *others: Any) -> Any:
        """`mapped`, with the path of each leaf before its values."""
        paths = iter([path for path, _ in named_leaves(nested)])
        try:
            return mapped(lambda *each: function(next(paths), *each), nested, *others)
        except ValueError as error:
            self._refuse(
                f"other {self._plural} in one minibatch than in another ({error}): it must give "
                "the same ones each time"
            )

    def _check_type(self, dtype: np.dtype[Any], wanted: np.dtype[Any], path: str) -> None:
        texts = (dtype.kind == "O") != (wanted.kind == "O")
        if texts or not np.can_cast(dtype, wanted, "safe"):
            self._refuse(
                f"the type {type_name(dtype)} as {self._named(path)}, and {type_name(wanted)} in "
                "another minibatch: convert it to one type, as with .astype()"
            )

    def _refuse_shape(self, array: Array, wanted: tuple[int | None, ...], path: str) -> NoReturn:
        self._refuse(
            f"an array of the shape {array.shape} as {self._named(path)}, and one of "
            f"{('records', *wanted[1:])} in another minibatch: make all of one shape, as "
            "column.padded(n) does"
        )

    # ------------------------------------------------------------ one a record

    def check_lengths(self, features: Any, first: int, records: int, source: str) -> None:
        """Raises UserError unless each array of features has an element a record.

        Only the values of lists have others: one-dimensional, with their offsets beside them in
        the same dict, tuple or list.

        first: number of the first of the `records`.
        """
        if not leaves(features):
            self._refuse(f"no {self._plural} at all")
        at = f"the {records} records from {first} on of {source}"
        self._check_lengths(features, (), "", records, at)

    def _check_lengths(self, value: Any, beside: Any, path: str, records: int, at: str) -> None:
        """beside: the dict, tuple or list that the value is in."""
        if isinstance(value, Mapping | tuple | list):
            for key, each in _entries(value):
                self._check_lengths(each, value, f"{path}/{key}" if path else str(key), records, at)
            return
        if len(value) == records or (
            value.ndim == 1
            and any(_are_offsets(each, records, value) for _, each in _entries(beside))
        ):
            return
        advice = "it must give one per record; a record of weight 0 counts for nothing"
        if isinstance(beside, list):
            advice += ". Each array of a list is a feature: np.stack() makes one of them"
        self._refuse(f"{len(value)} elements as {self._named(path)} for {at}: {advice}")

    # ------------------------------------------------------------ words

    @property
    def _plural(self) -> str:
        return "features" if self._part == FEATURES else self._part

    def _named(self, path: str) -> str:
        if not path:
            return f"the {self._plural}"
        return f"{self._part} {path!r}"

    def _refuse(self, what: str) -> NoReturn:
        raise UserError(f"{self._feed} gives {what}")


def lengths(arrays: Any) -> list[int]:
    """The length of each array that is there."""
    return [len(each) for each in leaves(arrays) if each is not None]


def _is_array(value: Any) -> bool:
    """True for what has a shape with an axis, and for a column of lists."""
    return isinstance(value, ListColumn | Mapping) or bool(getattr(value, "shape", ()))


def _entries(nested: Any) -> Iterable[tuple[Any, Any]]:
    return nested.items() if isinstance(nested, Mapping) else enumerate(nested)


def _are_offsets(array: Any, records: int, values: Array) -> bool:
    """True if an array may be where each record's list begins in `values`."""
    return bool(
        isinstance(array, np.ndarray)
        and array.shape == (records,)
        and array.dtype.kind in "iu"
        and array[0] == 0
        and array[-1] <= len(values)
        and np.all(array[1:] >= array[:-1])
    )


def type_name(dtype: np.dtype[Any]) -> str:
    """The name of a type of arrays, for messages."""
    return "text" if dtype.kind == "O" else dtype.name


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
