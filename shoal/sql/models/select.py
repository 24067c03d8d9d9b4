"""The columns that a SELECT gives: their types, and what is known of their values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shoal.base.words import near_or_all
from shoal.sql.errors import SqlError
from shoal.sql.terms import Listed, Literal, Name, Place, Term


@dataclass(frozen=True)
class SelectSchema:
    """Names and types of the columns that a SELECT gives."""

    types: Mapping[str, pa.DataType]

    @classmethod
    def of(cls, schema: pa.Schema) -> SelectSchema:
        """That of an Arrow schema."""
        return cls({each.name: each.type for each in schema})


@dataclass(frozen=True)
class Element:
    """The values of a column: "integer", "boolean", "float", "text" or "time", or lists of them.

    length: of lists that are all as long.
    """

    kind: str
    listed: bool = False
    length: int | None = None


def element_of(kind: pa.DataType) -> Element | None:
    """The values of a column of this type; None for types that no feature is made of."""
    types = pa.types
    if types.is_dictionary(kind):
        return element_of(kind.value_type)
    fixed = types.is_fixed_size_list(kind)
    if fixed or types.is_list(kind) or types.is_large_list(kind):
        inner = element_of(kind.value_type)
        if inner is None or inner.listed or inner.kind == "time":
            return None
        return Element(inner.kind, True, kind.list_size if fixed else None)
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    known = {
        "boolean": types.is_boolean(kind),
        "integer": types.is_integer(kind) or (types.is_decimal(kind) and not kind.scale),
        "float": types.is_floating(kind) or types.is_decimal(kind),
        "time": types.is_temporal(kind),
        "text": text or types.is_binary(kind) or types.is_large_binary(kind),
    }
    return next((Element(name) for name, holds in known.items() if holds), None)


@dataclass
class SelectColumns:
    """The columns of a SELECT as terms name them.

    statistics: by column, as shoal analyze tells them; empty where they are not known.
    """

    schema: SelectSchema
    statistics: Mapping[str, Mapping[str, Any]]

    def named(self, term: Term) -> str:
        """The column that a term names. Raises SqlError if it is none of the SELECT's."""
        name = word(term)
        if name is None:
            raise SqlError("a column's name is expected here", term.place)
        # A name may have its table in front, and upper and lower case are one to SQL.
        for wanted in (name, name.rpartition(".")[2]):
            if wanted in self.schema.types:
                return wanted
            alike = [each for each in self.schema.types if each.lower() == wanted.lower()]
            if len(alike) == 1:
                return alike[0]
        hint = near_or_all(name, list(self.schema.types))
        raise SqlError(f"the SELECT gives no column {name!r}{hint}", term.place)

    def element(self, term: Term) -> tuple[str, Element]:
        """The column that a term names, and its values. Raises SqlError if it has none of use."""
        name = self.named(term)
        kind = self.schema.types[name]
        if pa.types.is_null(kind):
            raise SqlError(f"column {name} has no values, so its type is not known", term.place)
        found = element_of(kind)
        if found is None:
            raise SqlError(
                f"column {name} is of type {kind}, which is no number, text, bool or time, nor a "
                "list of such: take a part of it in the SELECT",
                term.place,
            )
        return name, found

    def of(self, name: str) -> Mapping[str, Any]:
        """The statistics of a column."""
        return self.statistics.get(name, {})

    def scale(self, name: str, place: Place) -> tuple[float, float]:
        """Mean and standard deviation. Raises SqlError if there are infinities."""
        mean, stddev = self.of(name).get("mean", 0.0), self.of(name).get("stddev", 1.0)
        if not (math.isfinite(mean) and math.isfinite(stddev)):
            raise SqlError(
                f"column {name} has infinite values: leave them out in the SELECT", place
            )
        return float(mean), float(stddev) or 1.0

    def filling(self, name: str) -> str | int | float:
        """The value in place of missing ones: the mean of numbers, the id 0, the empty text."""
        kind = self.schema.types[name]
        element = element_of(kind)
        assert element is not None, name
        mean = 0.0 if element.listed else self.of(name).get("mean", 0.0)
        match element.kind:
            case "integer":
                return round(mean)
            case "float":
                return round(mean, kind.scale) if pa.types.is_decimal(kind) else float(mean)
        others: dict[str, str | int] = {"text": "", "boolean": "false", "time": 0}
        return others[element.kind]


def word(term: Term) -> str | None:
    """The text of a name or a string; None of other terms."""
    if isinstance(term, Literal):
        return term.value if isinstance(term.value, str) else None
    return term.text if isinstance(term, Name) else None


def said(term: Term) -> str:
    """A term as text."""
    match term:
        case Name():
            return term.text
        case Literal():
            return quoted(term.value) if isinstance(term.value, str) else str(term.value)
        case Listed():
            return f"[{', '.join(map(said, term.items))}]"
    return f"{term.name}({', '.join(map(said, term.arguments))})"


def quoted(text: str) -> str:
    """A text as a string of the clause."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
