"""The part of a module that makes features of columns: feed_batch, its layers and its inputs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from shoal.sql.models.plan import Bucket, Cross, Ids, Number, Plan, Source, Vector, unique

WIDTH = 100

SEPARATORS = {",": "commas", ":": "colons", ";": "semicolons", " ": "spaces", "|": "bars"}
SEPARATORS |= {"\t": "tabs"}

HELPERS = {
    "before": '''\
def before(mark, texts):
    """The part of each text in front of the first mark: all of it where there is none."""
    return tf.strings.regex_replace(texts, f"{re.escape(mark)}.*", "")
''',
    "behind": '''\
def behind(mark, texts):
    """The part of each text behind the first mark: none where there is no mark."""
    return tf.strings.regex_replace(texts, f"^(.*?{re.escape(mark)}|.*$)", "")
''',
    "crossed": '''\
def crossed(*columns):
    """A text for each combination of the columns' values."""
    texts = [each if each.dtype == tf.string else tf.strings.as_string(each) for each in columns]
    return tf.strings.join(texts, CROSSED)
''',
    "in_range": '''\
def in_range(ids, size, column):
    """The ids, if all are from 0 to size - 1; another fails its record."""
    values = ids.flat_values if isinstance(ids, tf.RaggedTensor) else ids
    wrong = tf.boolean_mask(values, (values < 0) | (values >= size))
    tf.debugging.Assert(tf.size(wrong) == 0, [f"{column} must be below {size}, and not", wrong])
    return ids
''',
    "class_of": '''\
def class_of(labels):
    """The place of each label in CLASSES; one that is not there fails its record."""
    places = to_class(labels)
    wrong = tf.boolean_mask(labels, places == len(CLASSES))
    tf.debugging.Assert(tf.size(wrong) == 0, ["the label must be one of CLASSES, not", wrong])
    return places
''',
    "vectors_of": '''\
def vectors_of(lists, size, column):
    """Lists of numbers as float32 [batch, size]; one of another length fails its record."""
    lengths = lists.row_lengths()
    wrong = tf.boolean_mask(lengths, lengths != size)
    tf.debugging.Assert(tf.size(wrong) == 0, [f"{column} must have {size} numbers, not", wrong])
    return tf.cast(lists, tf.float32).to_tensor(shape=[None, size])
''',
}
"""Functions that a module has where it needs them."""


def literal(value: Any) -> str:
    """A value as Python writes it, texts in double quotes."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\x7f")
    if isinstance(value, tuple):
        inner = ", ".join(map(literal, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)


def listed(head: str, items: Iterable[str], tail: str, indent: int = 0) -> str:
    """Items between brackets, in one line or in a line each."""
    space = " " * indent
    found = list(items)
    line = f"{space}{head}{', '.join(found)}{tail}"
    if len(line) <= WIDTH:
        return line
    inner = "".join(f"{space}    {each},\n" for each in found)
    return f"{space}{head}\n{inner}{space}{tail}"


@dataclass
class Feed:
    """Texts of a module, as far as the plan's columns make them.

    layers: by the call that makes one, its name. helpers: names of HELPERS. entries, inputs: what
    feed_batch gives and custom_model takes, as items of a dict.
    """

    plan: Plan
    layers: dict[str, str] = field(default_factory=dict)
    helpers: set[str] = field(default_factory=set)
    entries: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    names: dict[Source, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sources = {each.source: each.name for each in reversed(self.plan.features)}
        taken = {each.name for each in self.plan.features}
        self.numbers = [
            each.source for each in self.plan.features if isinstance(each.source, Number)
        ]
        self.numbers = list(dict.fromkeys(self.numbers))
        self.numbers_name = "numbers" if "numbers" not in taken else "all_numbers"
        if self.numbers:
            self._add(self.numbers_name, "tf.stack(numbers, axis=1)", [self.width], "float32")
        for source, name in reversed(sources.items()):
            if not isinstance(source, Number):
                self.names[source] = name
                self._feature(name, source)

    @property
    def width(self) -> int:
        """The length of the input of all single numbers."""
        return len(self.numbers) + sum(each.masked for each in self.numbers)

    def _add(self, name: str, value: str, shape: list[int | None], dtype: str, **more: Any) -> None:
        entry = f'"{name}": {value}'
        if len(entry) + len("        ,") > WIDTH:
            call, _, arguments = entry.removesuffix(")").partition("(")
            entry = f"{call}(\n            {arguments}\n        )"
        self.entries.append(entry)
        kind = "" if dtype == "float32" else f", dtype={literal(dtype)}"
        kind += "".join(f", {key}={each}" for key, each in more.items())
        self.inputs.append(f'"{name}": keras.Input({shape}{kind}, name="{name}")')

    def _feature(self, name: str, source: Source) -> None:
        value = self._value(source, name)
        if isinstance(source, Vector):
            self._add(name, value, [source.size], "float32")
        elif not isinstance(source, Ids) or not source.listed:
            self._add(name, value, [], "int64")
        elif source.length is not None:
            self._add(name, value, [source.length], "int64")
        else:
            self._add(name, value, [None], "int64", ragged=True)
            if source.weighted:
                # An id without a weight counts once.
                layer = self.layer("ToNumber(default_value=1)", "to_weight")
                self.helpers.add("behind")
                weight = f"behind({literal(source.pair)}, {self._split(source)})"
                self._add(f"{name}_weights", f"{layer}({weight})", [None], "float32", ragged=True)

    def layer(self, call: str, name: str) -> str:
        """The name of a layer, which is made once."""
        return self.layers.setdefault(call, name)

    # -------------------------------------------------------- expressions of feed_batch

    def _value(self, source: Source, name: str) -> str:
        match source:
            case Vector():
                return self._vector(source)
            case Ids():
                return self._ids(source)
            case Bucket():
                return self._bins(source)
            case Cross():
                self.helpers.add("crossed")
                parts = map(self._part, source.parts)
                return f"{self._hashing(source.size)}(crossed({', '.join(parts)}))"
        raise AssertionError(name)

    def _vector(self, vector: Vector) -> str:
        value = f"columns[{literal(vector.column)}]"
        if vector.delimiter:
            value = f"{self._to_number(vector.dtype)}({self._at(vector.delimiter)}({value}))"
        if vector.fixed:
            return f"tf.cast({value}, tf.float32)"
        self.helpers.add("vectors_of")
        return f"vectors_of({value}, {vector.size}, {literal(vector.column)})"

    def _split(self, ids: Ids) -> str:
        value = f"columns[{literal(ids.column)}]"
        return f"{self._at(ids.delimiter)}({value})" if ids.delimiter else value

    def _ids(self, ids: Ids) -> str:
        value = self._split(ids)
        if ids.pair:
            self.helpers.add("before")
            value = f"before({literal(ids.pair)}, {value})"
        if ids.element == "boolean":
            value = f"tf.cast({value}, tf.int64)"
        if ids.delimiter and ids.element == "integer":
            value = f"{self._to_number('int64')}({value})"
        if ids.hashed:
            return f"{self._hashing(ids.size)}({value})"
        if ids.size is None:
            return value
        self.helpers.add("in_range")
        return f"in_range({value}, {ids.size}, {literal(ids.column)})"

    def _part(self, part: Ids | Bucket) -> str:
        """A part of a cross, of any type that becomes a text."""
        if isinstance(part, Bucket):
            return self._bins(part)
        plain = not part.hashed and part.size is None
        return f"columns[{literal(part.column)}]" if plain else self._ids(part)

    def _bins(self, bucket: Bucket) -> str:
        call = listed("Discretization([", map(repr, bucket.boundaries), "])")
        name = unique(f"{bucket.column}_bins", self.layers.values())
        return f"{self.layer(call, name)}(columns[{literal(bucket.column)}])"

    def _to_number(self, dtype: str) -> str:
        return self.layer(f"ToNumber({literal(dtype)})", f"to_{dtype}")

    def _at(self, delimiter: str) -> str:
        name = SEPARATORS.get(delimiter) or f"separator_{delimiter.encode().hex()}"
        return self.layer(f"ToRagged({literal(delimiter)})", f"at_{name}")

    def _hashing(self, size: int | None) -> str:
        if size is None:
            return self.layer("Hashing()", "to_id")
        return self.layer(f"Hashing({size})", f"to_{size}_ids")
