"""Layers that make int64 ids: by hash, by vocabulary, by shifting.

The values of `Hashing` are part of what a trained model means: a row is found again
by its id. They must never change from one version of shoal to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.data.columns import ListColumn
from shoal.native.ids import mix64
from shoal.native.strings import string_ids
from shoal.preprocessing.base import (
    ON_TENSORFLOW,
    Array,
    Arrays,
    ElementwiseLayer,
    PreprocessingLayer,
    as_array,
    as_tensor,
    is_strings,
    positive_integer,
    serializable,
    symbolic,
    tf,
)
from shoal.preprocessing.lists import beside

if TYPE_CHECKING:
    import keras

# The largest number of buckets that TensorFlow's string hash takes.
_STRING_BUCKETS = 2**63 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def _unsigned(value: int) -> Any:
    return tf.constant(value, tf.uint64)


def mixed(values: Any, salt: int) -> Any:
    """SplitMix64's output function of `values` (uint64) shifted by `salt`: a bijection."""
    bits = values + _unsigned((salt + 1) * _GOLDEN & _MASK)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ tf.bitwise.right_shift(bits, _unsigned(shift))) * _unsigned(factor)
    return bits ^ tf.bitwise.right_shift(bits, _unsigned(31))


def hashed(values: Any, salt: int) -> Any:
    """A uint64 for every string or integer, the same in every process."""
    if values.dtype == tf.string:
        bits = tf.strings.to_hash_bucket_fast(values, _STRING_BUCKETS)
    elif values.dtype.is_integer:
        bits = tf.cast(values, tf.int64) if values.dtype != tf.uint64 else values
    else:
        raise ValueError(f"strings or integers can be hashed, not {values.dtype.name}")
    return mixed(tf.bitcast(bits, tf.uint64), salt)


def hashed_array(values: Array, salt: int) -> Array:
    """`hashed` of an array [n]."""
    if is_strings(values):
        bits = string_ids(values)
    elif values.dtype.kind in "iu":
        bits = values.astype(np.int64)
    else:
        raise ValueError(f"strings or integers can be hashed, not {values.dtype.name}")
    return mix64((bits.view(np.uint64) + np.uint64(salt * _GOLDEN & _MASK)).view(np.int64))


@serializable
class Hashing(ElementwiseLayer):
    """Strings or integers to int64 ids, by a hash that is the same everywhere.

    num_bins: ids are in [0, num_bins), and values may share one; None: ids are any
        int64. Then different integers never share an id, and strings do so by a chance
        of about n squared / 2**64 for n of them.
    salt: a non-negative integer; another salt gives another, independent hash.

    Input: strings or integers of any shape, dense, ragged or sparse; the integer 5 and the
    string "5" have different ids, int32 5 and int64 5 the same. Output: int64.
    """

    def __init__(self, num_bins: int | None = None, salt: int = 0, **kwargs: Any) -> None:
        if isinstance(salt, bool) or not isinstance(salt, int) or salt < 0:
            raise ValueError(f"salt must be a non-negative integer, not {salt!r}")
        super().__init__(**kwargs)
        self.num_bins = None if num_bins is None else positive_integer("num_bins", num_bins)
        self.salt = salt

    def transform(self, values: Any) -> Any:
        """The id of each value."""
        bits = hashed(values, self.salt)
        if self.num_bins is None:
            return tf.bitcast(bits, tf.int64)
        return tf.cast(bits % _unsigned(self.num_bins), tf.int64)

    def transform_array(self, values: Array) -> Array:
        """The id of each value."""
        bits = hashed_array(values, self.salt)
        if self.num_bins is None:
            return bits.view(np.int64)
        return (bits % np.uint64(self.num_bins)).astype(np.int64)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "num_bins": self.num_bins, "salt": self.salt}


@serializable
class IndexLookup(ElementwiseLayer):
    """Tokens to their positions in a vocabulary.

    vocabulary: a list of strings or of integers, or the path of a UTF-8 file with one
        token a line. A file is read once, here: a saved model holds the tokens.
    num_oov_indices: how many indices are kept for tokens out of the vocabulary; a hash
        picks one of them.
    token_type: "string" or "int64", for a file of integers; None: strings for a file,
        and what the elements are for a list.

    Input: tokens of the vocabulary's type (any integers for int64), of any shape, dense,
    ragged or sparse. Output: int64: 0 to n - 1 for the n tokens of the vocabulary in their
    order, n to n + num_oov_indices - 1 for the others.
    """

    def __init__(
        self,
        vocabulary: str | Path | Sequence[str] | Sequence[int],
        num_oov_indices: int = 1,
        token_type: str | None = None,
        **kwargs: Any,
    ) -> None:
        if token_type not in (None, "string", "int64"):
            raise ValueError(f'token_type must be "string" or "int64", not {token_type!r}')
        super().__init__(**kwargs)
        self.num_oov_indices = positive_integer("num_oov_indices", num_oov_indices)
        tokens = _tokens(vocabulary, token_type)
        # A tuple, as Keras would wrap a list to track its elements.
        self.vocabulary = tuple(tokens)
        self.token_type = "string" if isinstance(tokens[0], str) else "int64"
        if not ON_TENSORFLOW:
            return
        with tf.init_scope():
            # Anonymous: a dataset that uses the table may outlive this layer.
            self._table = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(
                    tf.constant(tokens, self.token_type), tf.range(len(tokens), dtype=tf.int64)
                ),
                default_value=-1,
                experimental_is_anonymous=True,
            )

    @property
    def num_indices(self) -> int:
        """Indices in use: the vocabulary's and those for unknown tokens."""
        return len(self.vocabulary) + self.num_oov_indices

    def transform(self, values: Any) -> Any:
        """The index of each token."""
        name = values.dtype.name
        self._check(name, values.dtype.is_integer)
        if name not in ("string", "int64"):
            values = tf.cast(values, tf.int64)
        found = self._table.lookup(values)
        unknown = hashed(values, 0) % _unsigned(self.num_oov_indices)
        return tf.where(found < 0, len(self.vocabulary) + tf.cast(unknown, tf.int64), found)

    def transform_array(self, values: Array) -> Array:
        """The index of each token."""
        self._check(
            "string" if is_strings(values) else values.dtype.name, values.dtype.kind in "iu"
        )
        keys = map(_key, values.tolist())
        found = np.fromiter((self._places.get(key, -1) for key in keys), np.int64, len(values))
        unknown = hashed_array(values, 0) % np.uint64(self.num_oov_indices)
        return np.where(found < 0, len(self.vocabulary) + unknown.astype(np.int64), found)

    @cached_property
    def _places(self) -> dict[Any, int]:
        """The position of each token."""
        return {_key(token): place for place, token in enumerate(self.vocabulary)}

    def _check(self, dtype: str, integers: bool) -> None:
        """Raises ValueError for tokens of another type than the vocabulary's."""
        if (dtype == "string") != (self.token_type == "string"):
            raise ValueError(
                f"{self.name}: the vocabulary is of type {self.token_type}, "
                f"the input of type {dtype}"
            )
        if self.token_type == "int64" and (not integers or dtype == "uint64"):
            raise ValueError(f"{self.name}: integers are looked up, not {dtype}")

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, with the tokens in place of a file."""
        return {
            **super().get_config(),
            "vocabulary": list(self.vocabulary),
            "num_oov_indices": self.num_oov_indices,
            "token_type": self.token_type,
        }


def _key(token: Any) -> Any:
    """The same for str as for its bytes."""
    return token.encode() if isinstance(token, str) else token


def _tokens(vocabulary: Any, token_type: str | None) -> list[Any]:
    """The vocabulary as a list, checked. Raises ValueError that names the bad token."""
    where, source = "element", "vocabulary"
    if isinstance(vocabulary, str | Path):
        where, source = "line", str(vocabulary)
        try:
            text = Path(vocabulary).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"vocabulary {vocabulary} cannot be read: {error}") from error
        # Not splitlines(): it also splits at characters that a token may hold.
        tokens: list[Any] = text.removesuffix("\n").split("\n") if text else []
        if token_type == "int64":
            tokens = [_integer(token, f"{source}, line {n}") for n, token in enumerate(tokens, 1)]
    else:
        # NumPy's strings and integers become Python's; other types are told below.
        tokens = np.asarray(vocabulary, dtype=object).ravel().tolist()
        tokens = [int(token) if isinstance(token, np.integer) else token for token in tokens]
    if not tokens:
        raise ValueError(f"{source} is empty")
    # Lines are counted from 1, as editors do, elements from 0, as Python does.
    first = 1 if where == "line" else 0
    expected = token_type or ("string" if isinstance(tokens[0], str) else "int64")
    kind = str if expected == "string" else int
    seen: dict[Any, int] = {}
    for position, token in enumerate(tokens, first):
        if not isinstance(token, kind) or isinstance(token, bool):
            raise ValueError(
                f"{source}, {where} {position}: {token!r} is not of type {expected}; "
                "tokens are all strings or all integers"
            )
        if token in seen:
            raise ValueError(
                f"{source}, {where} {position}: {token!r} is already {where} {seen[token]}"
            )
        seen[token] = position
    return tokens


def _integer(token: str, place: str) -> int:
    try:
        return int(token)
    except ValueError:
        raise ValueError(f"{place}: {token!r} is not an integer") from None


@serializable
class ConcatenateWithOffset(PreprocessingLayer):
    """Ids of several columns side by side, each shifted into a range of its own.

    One embedding table can then serve all columns: with columns of sizes 10, 20 and 5,
    offsets of 0, 10 and 30 keep them apart.

    offsets: an integer for each input, added to its ids.
    axis: the axis to join along.

    Input: a list of integer tensors of the same shape but for `axis`, dense, all ragged
    or all sparse. Output: int64.
    """

    def __init__(self, offsets: Sequence[int], axis: int = -1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.offsets = tuple(int(offset) for offset in offsets)
        if not self.offsets:
            raise ValueError("offsets must have one integer per input, not none")
        self.axis = axis

    def _check(self, inputs: Any) -> None:
        if not isinstance(inputs, list | tuple) or len(inputs) != len(self.offsets):
            given = len(inputs) if isinstance(inputs, list | tuple) else "no list of"
            raise ValueError(f"{self.name}: {len(self.offsets)} offsets for {given} inputs")

    def call(self, inputs: Any) -> Any:
        """Join the shifted ids."""
        self._check(inputs)
        shifted = []
        for position, (ids, offset) in enumerate(zip(inputs, self.offsets, strict=True)):
            sparse = isinstance(ids, tf.SparseTensor)
            tensor = ids if sparse else as_tensor(ids)
            if not tensor.dtype.is_integer:
                raise ValueError(
                    f"{self.name}: input {position} is {tensor.dtype.name}; ids are integers"
                )
            if sparse:
                shifted.append(ids.with_values(tf.cast(ids.values, tf.int64) + offset))
            else:
                shifted.append(tf.cast(tensor, tf.int64) + offset)
        kinds = {isinstance(each, tf.SparseTensor) for each in shifted}
        if len(kinds) > 1:
            raise ValueError(
                f"{self.name}: some inputs are sparse, and some are not; make all sparse"
            )
        if True in kinds:
            return tf.sparse.concat(self.axis, shifted)
        return tf.concat(shifted, axis=self.axis)

    def of_arrays(self, inputs: Any) -> Arrays:
        """Join the shifted ids."""
        self._check(inputs)
        given = [each if isinstance(each, ListColumn) else as_array(each) for each in inputs]
        return beside(
            [self._shifted(i, each) for i, each in enumerate(given)], self.axis, self.name
        )

    def _shifted(self, position: int, ids: Arrays) -> Arrays:
        if isinstance(ids, ListColumn):
            return replace(ids, values=self._shifted(position, ids.values))
        if ids.dtype.kind not in "iu":
            name = "string" if is_strings(ids) else ids.dtype.name
            raise ValueError(f"{self.name}: input {position} is {name}; ids are integers")
        return ids.astype(np.int64) + self.offsets[position]

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:
        """Shape and dtype of the joined ids."""
        self._check(inputs)
        rank = len(inputs[0].shape)
        axis = self.axis + rank if self.axis < 0 else self.axis
        if axis == 0:
            raise ValueError(
                f"{self.name}: axis {self.axis} of inputs of shape {tuple(inputs[0].shape)} is "
                "the batch; give each input a second axis, as keras.Input([1]) has"
            )
        lengths = [ids.shape[axis] for ids in inputs]
        shape = list(inputs[0].shape)
        shape[axis] = None if None in lengths else sum(lengths)
        return symbolic(tuple(shape), "int64", like=inputs[0])

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**super().get_config(), "offsets": list(self.offsets), "axis": self.axis}
