"""The functions of COLUMN: a term to a feature, or an SqlError with its place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shoal.base.words import near, near_or_all
from shoal.data.samples.sketches import boundaries_of
from shoal.sql.errors import SqlError
from shoal.sql.models.plan import Bucket, Category, Cross, Feature, Ids, Number, Vector, columns_of
from shoal.sql.models.select import Element, SelectColumns, quoted, said, word
from shoal.sql.terms import Call, Listed, Literal, Name, Place, Term

DEFAULT_DIM = 8
"""Length of the vector of a category that the clause only names."""

MOST_INDICATORS = 10_000
"""Numbers that an INDICATOR makes at most: beyond, vectors take less and learn more."""

MANY_VALUES = 1_000
"""Different integers above which a column that is taken for a number may well have ids."""

DELIMITERS = {"COMMA": ",", "COLON": ":", "SEMICOLON": ";", "SPACE": " ", "TAB": "\t", "PIPE": "|"}
"""Delimiters that may be written as words."""

COMBINERS = ("sum", "mean", "sqrtn")

INITIALIZERS = (
    *("uniform", "random_uniform", "random_normal", "truncated_normal", "zeros", "ones"),
    *("glorot_uniform", "glorot_normal", "he_uniform", "he_normal"),
    *("lecun_uniform", "lecun_normal"),
)

NUMBERS = {"float": "float32", "float32": "float32", "float64": "float64", "double": "float64"}
NUMBERS |= {"int": "int64", "int32": "int32", "int64": "int64"}
IDS = {"int": "int64", "int32": "int64", "int64": "int64", "string": "string", "str": "string"}
"""Types that DENSE and SPARSE may name, and those of the model."""

USAGES = {
    "EMBEDDING": "EMBEDDING(column, dim[, combiner[, initializer]])",
    "INDICATOR": "INDICATOR(category)",
    "CATEGORY_ID": "CATEGORY_ID(column, size)",
    "SEQ_CATEGORY_ID": "SEQ_CATEGORY_ID(column, size)",
    "CATEGORY_HASH": "CATEGORY_HASH(column[, size])",
    "WEIGHTED_CATEGORY": "WEIGHTED_CATEGORY(category)",
    "CROSS": "CROSS([column, column, ...][, size])",
    "BUCKET": "BUCKET(column, [boundary, ...]) or BUCKET(column, bins)",
    "DENSE": "DENSE(column, size[, delimiter[, dtype]])",
    "SPARSE": "SPARSE(column, size[, delimiter[, dtype[, delimiter, dtype]]])",
    "NUMERIC": "NUMERIC(column[, size])",
}
"""The functions of COLUMN."""


@dataclass
class Features:
    """Makes features of terms. label: the column that is none. hints: sentences to be printed."""

    columns: SelectColumns
    label: str
    hints: list[str] = field(default_factory=list)

    def of(self, term: Term) -> Feature:
        """The feature of a term. Raises SqlError."""
        match term:
            case Call(name="EMBEDDING"):
                return self._embedding(term)
            case Call(name="INDICATOR"):
                return self._indicator(term)
            case Call(name="DENSE" | "NUMERIC"):
                return self._vector(term)
            case Name() | Literal():
                name, element = self._column(term)
                if element.kind == "time":
                    raise SqlError(
                        f"column {name} is of type {self._type(name)}: take a part of it in the "
                        f"SELECT, such as extract(hour FROM {name}), or name the columns in COLUMN",
                        term.place,
                    )
                if element.kind == "float" and element.listed:
                    return self._vector(Call("DENSE", (term,), term.place))
                if not element.listed and element.kind != "text":
                    return self._number(name, term.place, element)
        category = self._category(term)
        text = said(term)
        if not isinstance(term, Call):
            column = columns_of(category)[0]
            text = _name(column)
            if isinstance(category, Ids) and category.element == "text":
                text = f"CATEGORY_HASH({text})"
        dim = 1 if isinstance(category, Cross) else DEFAULT_DIM
        return Feature(_name_of(category), category, text, "embedding", dim, derived=True)

    # -------------------------------------------------------- numbers

    def _number(self, name: str, place: Place, element: Element) -> Feature:
        told = self.columns.of(name)
        if element.kind == "integer" and told.get("distinct", 0) > MANY_VALUES:
            self.hints.append(
                f"{name} has {told['distinct']:,} different values and is taken for a number; if "
                f"they are ids: EMBEDDING({_name(name)}, 16)"
            )
        source = Number(name, *self.columns.scale(name, place), bool(told.get("missing")))
        return Feature(name, source, _name(name))

    def _vector(self, call: Call) -> Feature:
        """DENSE(...), or NUMERIC(...) around a column or around that."""
        first, *more = _arguments(call, 1, 4 if call.name == "DENSE" else 2)
        if isinstance(first, Call) and first.name == "DENSE":
            return self._vector(first)
        name, element = self._column(first)
        text = element.kind == "text"
        size = math.prod(_sizes(more[0])) if more else element.length or 1
        if element.kind == "time" or (text and element.listed):
            raise SqlError(
                f"{call.name} needs numbers, and {name} is of type {self._type(name)}", first.place
            )
        if not text and not element.listed and size == 1:
            return self._number(name, first.place, element)
        if not more and element.length is None:
            raise SqlError(f"DENSE({name}, size) says how many numbers a row has", first.place)
        if not text and size != (element.length or size * element.listed):
            raise SqlError(
                f"{call.name}: each row of {name} has {element.length or 1} numbers, not {size}",
                call.place,
            )
        delimiter = _delimiter(more[1]) if len(more) > 1 else ","
        dtype = _choice(more[2], NUMBERS, "type") if len(more) > 2 else "float"
        source = Vector(name, size, fixed=element.length is not None)
        source = Vector(name, size, delimiter, NUMBERS[dtype]) if text else source
        return Feature(name, source, said(call))

    # -------------------------------------------------------- categories as features

    def _embedding(self, call: Call) -> Feature:
        of, dim, *more = _arguments(call, 2, 4)
        category = self._category(of)
        combiner = _choice(more[0], COMBINERS, "combiner") if more else "sum"
        initializer = _choice(more[1], INITIALIZERS, "initializer") if more[1:] else "uniform"
        return Feature(
            *(_name_of(category), category, said(call), "embedding"),
            *(_positive(dim), combiner, initializer),
        )

    def _indicator(self, call: Call) -> Feature:
        (of,) = _arguments(call, 1, 1)
        category = self._category(of)
        if category.size is None:
            column = columns_of(category)[0]
            raise SqlError(
                "INDICATOR needs a number of categories, as of "
                f"INDICATOR(CATEGORY_HASH({column}, size)); EMBEDDING({column}, dim) needs none",
                of.place,
            )
        if category.size > MOST_INDICATORS:
            raise SqlError(
                f"INDICATOR would make {category.size:,} numbers, and {MOST_INDICATORS:,} is the "
                f"most: EMBEDDING({said(of)}, 16) makes a short vector",
                of.place,
            )
        if isinstance(category, Ids) and category.weighted:
            raise SqlError(f"INDICATOR takes no weights: EMBEDDING({said(of)}, 16) does", of.place)
        return Feature(_name_of(category), category, said(call), "indicator")

    # -------------------------------------------------------- categories

    def _category(self, term: Term) -> Category:
        """The category of a term. Raises SqlError if it is none."""
        if not isinstance(term, Call):
            return self._ids(term, None, hashed=None)
        match term.name:
            case "CATEGORY_ID" | "SEQ_CATEGORY_ID":
                of, size = _arguments(term, 2, 2)
                return self._ids(of, _positive(size), hashed=False)
            case "CATEGORY_HASH":
                of, *more = _arguments(term, 1, 2)
                return self._ids(of, _positive(more[0]) if more else None, hashed=True)
            case "SPARSE":
                found = self._ids(term, _positive(_arguments(term, 2, 6)[1]), hashed=None)
                # The hash of a text may be any number.
                return replace(found, size=None) if found.hashed else found
            case "WEIGHTED_CATEGORY":
                return self._weighted(*_arguments(term, 1, 1))
            case "BUCKET":
                return self._bucket(term)
            case "CROSS":
                return self._cross(term)
        if term.name in USAGES:
            raise SqlError(f"{term.name} makes no category, as is expected here", term.place)
        hint = near_or_all(term.name, list(USAGES))
        raise SqlError(f"there is no function {term.name}{hint}", term.place)

    def _ids(self, term: Term, size: int | None, hashed: bool | None) -> Ids:
        """The ids of a column or of SPARSE. hashed: None where only texts are."""
        sparse: tuple[Term, ...] = ()
        if isinstance(term, Call) and term.name == "SPARSE":
            term, *rest = _arguments(term, 2, 6)
            sparse = tuple(rest)
            _positive(sparse[0])
        name, element = self._column(term)
        if element.kind == "float":
            raise SqlError(
                f"{name} is of type {self._type(name)}, and ids are no such numbers: "
                f"BUCKET({name}, 10) makes ids of them",
                term.place,
            )
        kind = "integer" if element.kind == "time" else element.kind
        delimiter = pair = ""
        # A text of which ids are wanted spells a list of them.
        if kind == "text" and not element.listed and (sparse or hashed is False):
            delimiter = _delimiter(sparse[1]) if sparse[1:] else ","
            dtype = _choice(sparse[2], IDS, "type") if sparse[2:] else "int"
            kind = "text" if IDS[dtype] == "string" else "integer"
            pair = _delimiter(sparse[3]) if sparse[3:] else ""
            if sparse[4:]:
                _choice(sparse[4], NUMBERS, "type")
        elif sparse[3:]:
            raise SqlError(f"{name} is no text, so its ids have no weights", term.place)
        if kind == "text" and hashed is False:
            raise SqlError(f"{name} has texts: CATEGORY_HASH makes ids of them", term.place)
        hashed = kind == "text" if hashed is None else hashed
        listed = element.listed or bool(delimiter)
        return Ids(name, kind, size, hashed, listed, delimiter, element.length, pair)

    def _weighted(self, term: Term) -> Ids:
        category = self._category(term)
        if not isinstance(category, Ids) or not category.pair:
            raise SqlError(
                'WEIGHTED_CATEGORY needs weights: SPARSE(column, size, ",", "int", ":", "float") '
                "reads texts such as 3:0.5,7:2",
                term.place,
            )
        return replace(category, weighted=True)

    def _bucket(self, call: Call) -> Bucket:
        of, given = _arguments(call, 2, 2)
        if isinstance(of, Call) and of.name == "NUMERIC":
            of = _arguments(of, 1, 2)[0]
        name, element = self._column(of)
        if element.listed or element.kind == "text":
            raise SqlError(
                f"BUCKET needs a number, and {name} is of type {self._type(name)}", of.place
            )
        if isinstance(given, Listed):
            bounds = [_number_of(each) for each in given.items]
            if not bounds or sorted({*bounds}) != bounds:
                raise SqlError("the boundaries of BUCKET are numbers that ascend", given.place)
            return Bucket(name, tuple(bounds))
        bins = _positive(given)
        quantiles = self.columns.of(name).get("quantiles")
        if bins < 2 or not quantiles:
            why = "two bins are the least" if quantiles else f"the values of {name} are not known"
            raise SqlError(f"BUCKET: {why}; a list of boundaries may be given instead", given.place)
        return Bucket(name, tuple(boundaries_of(quantiles, bins)))

    def _cross(self, call: Call) -> Cross:
        of, *more = _arguments(call, 1, 2)
        if not isinstance(of, Listed) or len(of.items) < 2:
            raise SqlError("CROSS takes a list of two columns or more: CROSS([a, b])", of.place)
        parts: list[Ids | Bucket] = []
        for each in of.items:
            part = self._category(each)
            if isinstance(part, Cross) or (isinstance(part, Ids) and part.listed):
                raise SqlError("CROSS takes columns with one value in each row", each.place)
            if isinstance(part, Ids) and not isinstance(each, Call):
                part = replace(part, hashed=False)
            parts.append(part)
        return Cross(tuple(parts), _positive(more[0]) if more else None)

    # -------------------------------------------------------- columns

    def _column(self, term: Term) -> tuple[str, Element]:
        """The column that a term names, and its values. Raises SqlError for the label, too."""
        if isinstance(term, Call):
            raise SqlError(f"a column's name is expected here, not {term.name}", term.place)
        name, element = self.columns.element(term)
        if name == self.label:
            raise SqlError(f"{name} is the label, and cannot be a feature as well", term.place)
        return name, element

    def _type(self, name: str) -> str:
        return str(self.columns.schema.types[name])


def _name_of(category: Category) -> str:
    """The name of a feature: that of its columns, and for bins a word more."""
    name = "_".join(columns_of(category))
    return f"{name}_bucket" if isinstance(category, Bucket) else name


def _name(column: str) -> str:
    """A column's name as the clause has it: in quotes where it is no bare word."""
    return column if column.isidentifier() and column.isascii() else quoted(column)


# ------------------------------------------------------------ arguments


def _arguments(call: Call, least: int, most: int) -> tuple[Term, ...]:
    count = len(call.arguments)
    if not least <= count <= most:
        raise SqlError(f"{USAGES[call.name]} is not given {count} terms", call.place)
    return call.arguments


def _positive(term: Term) -> int:
    value = term.value if isinstance(term, Literal) else None
    if not isinstance(value, int) or value < 1:
        raise SqlError("a positive whole number is expected here", term.place)
    return value


def _number_of(term: Term) -> float:
    value = term.value if isinstance(term, Literal) else None
    if isinstance(value, str | None) or not math.isfinite(value):
        raise SqlError("a number is expected here", term.place)
    return float(value)


def _sizes(term: Term) -> list[int]:
    return [_positive(each) for each in (term.items if isinstance(term, Listed) else (term,))]


def _choice(term: Term, known: Sequence[str] | dict[str, str], what: str) -> str:
    found = (word(term) or said(term)).lower()
    if found not in known:
        raise SqlError(f"there is no {what} {found!r}{near_or_all(found, list(known))}", term.place)
    return found


def _delimiter(term: Term) -> str:
    found = word(term)
    if isinstance(term, Name):
        found = DELIMITERS.get(term.text.upper())
        if found is None:
            hint = near(term.text, DELIMITERS)
            raise SqlError(
                f"there is no delimiter {term.text}{hint}: write it in quotes", term.place
            )
    if not found:
        raise SqlError('a delimiter is expected here, such as COMMA or ","', term.place)
    return found
