"""COLUMN and LABEL, and the columns of a SELECT, to a plan.

Reads nothing: types come from the SELECT's schema, means and boundaries from the statistics of
`shoal analyze`. The meaning of each function of COLUMN is models/features.py's, the plan itself
models/plan.py's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from shoal.base.words import counted, near_or_all
from shoal.sql.errors import SqlError
from shoal.sql.models.features import Features
from shoal.sql.models.plan import Feature, Label, Plan, columns_of, unique
from shoal.sql.models.select import SelectColumns, SelectSchema
from shoal.sql.terms import Literal, Name, Place, Term

__all__ = ["SelectSchema", "plan"]

TARGETS = ("feature_columns", "linear_feature_columns", "dnn_feature_columns")
"""Names that may follow FOR; the first one is that of models with one part."""

MOST_CLASSES = 10_000
"""Different texts that are still taken for classes."""

MOST_INTEGER_CLASSES = 20
"""The same of integers, which may as well be numbers."""


def plan(
    terms: Mapping[str, Sequence[Term]],
    label: Term,
    schema: SelectSchema,
    statistics: Mapping[str, Any] | None = None,
) -> Plan:
    """The plan of a statement.

    terms: of COLUMN, by the name behind its FOR, "" without one; none at all for all columns.
    statistics: the result of `shoal analyze` for the SELECT's rows; without, numbers are not
    scaled. Raises SqlError with the place of a term that is wrong.
    """
    columns = SelectColumns(schema, (statistics or {}).get("columns", {}))
    told = _label(columns, label)
    features = Features(columns, told.column)
    found: dict[str, Feature] = {}
    given = {target: each for target, each in terms.items() if each}
    for target, some in (given or {"": [Name("*", label.place)]}).items():
        part = target.lower()
        if part and part not in TARGETS:
            hint = near_or_all(target, TARGETS)
            raise SqlError(f"no model has the part {target} that FOR names{hint}", some[0].place)
        for feature in _expanded(some, features):
            name = unique(feature.name, found)
            found[name] = replace(feature, name=name, target="" if part == TARGETS[0] else part)
    if not found:
        raise SqlError("the SELECT gives no column beside the label", label.place)
    used = dict.fromkeys(name for each in found.values() for name in columns_of(each.source))
    types = {name: str(schema.types[name]) for name in (*used, told.column)}
    # The flag has its commas between columns, so that these cannot be filled.
    fill = {name: columns.filling(name) for name in used if not {*name} & {*",="}}
    return Plan(tuple(found.values()), told, types, fill, tuple(features.hints))


def _expanded(terms: Sequence[Term], features: Features) -> list[Feature]:
    """The features of one COLUMN; `*` stands for the columns that no other term has."""
    stars = [each for each in terms if isinstance(each, Name) and each.text == "*"]
    made = [(each, features.of(each)) for each in terms if each not in stars]
    named = {name for _, feature in made for name in columns_of(feature.source)}
    found = [feature for _, feature in made]
    if stars:
        rest = [n for n in features.columns.schema.types if n not in named | {features.label}]
        at = terms.index(stars[0])
        found[at:at] = [features.of(Literal(name, stars[0].place)) for name in rest]
    return found


def _label(columns: SelectColumns, term: Term) -> Label:
    """The label. Raises SqlError if it is nothing that can be learned."""
    name, element = columns.element(term)
    told = columns.of(name)
    if element.listed or element.kind == "time":
        raise SqlError(
            f"the label {name} is of type {columns.schema.types[name]}: a number, a text or a bool "
            "can be learned",
            term.place,
        )
    if told.get("missing"):
        raise SqlError(
            f"the label {name} is missing in {counted(told['missing'], 'row')}: leave these out by "
            f"WHERE {name} IS NOT NULL",
            term.place,
        )
    if element.kind == "text":
        return Label(name, "text", _texts(name, told, term.place))
    mean, stddev = columns.scale(name, term.place)
    return Label(name, element.kind, _classes(element.kind, told), mean, stddev)


def _texts(name: str, told: Mapping[str, Any], place: Place) -> tuple[str, ...]:
    if not told:
        raise SqlError(f"the label {name} is text, and its values are not known", place)
    words = told["vocabulary"]
    if not words["complete"] or not 2 <= len(words["values"]) <= MOST_CLASSES:
        raise SqlError(
            f"the label {name} is text with {told['distinct']:,} different values, and 2 to "
            f"{MOST_CLASSES:,} can be classes",
            place,
        )
    return tuple(sorted(words["values"]))


def _classes(kind: str, told: Mapping[str, Any]) -> tuple[int | bool, ...]:
    """The classes that a column of numbers has; none if they are numbers indeed."""
    if kind == "boolean":
        return (False, True)
    distinct = told.get("distinct", 0)
    if kind == "float":
        # Files of text and some databases make floats of 0 and 1.
        return (0, 1) if (distinct, told.get("min"), told.get("max")) == (2, 0, 1) else ()
    if not 2 <= distinct <= MOST_INTEGER_CLASSES or not told["vocabulary"]["complete"]:
        return ()
    values = tuple(sorted(told["vocabulary"]["values"]))
    # Of 0, 1 and 3 the class 2 is one that has no row yet.
    return tuple(range(values[-1] + 1)) if values[0] >= 0 and values[-1] <= 2 * distinct else values
