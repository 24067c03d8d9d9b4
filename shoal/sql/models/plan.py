"""The plan of a model: which features are made of which columns, and what the label is.

columns.py makes it of a clause, module.py writes it as Python, and it is kept beside the model as
JSON. A plan knows no model: it is the same for all that are trained with its clause.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

FORMAT = "shoal-sql-plan-1"

WIDTH, BREAK = 100, "\n    "
"""The longest line of a clause; longer ones are broken between terms."""


@dataclass(frozen=True)
class Number:
    """A column of numbers, one a record, made standard by mean and stddev.

    masked: a bool column NAME_missing tells which values were missing in the training data.
    """

    column: str
    mean: float = 0.0
    stddev: float = 1.0
    masked: bool = False


@dataclass(frozen=True)
class Vector:
    """A column of lists of `size` numbers.

    delimiter, dtype: of a text that spells them; "" for a column of lists. fixed: its type says
    that all have the same length.
    """

    column: str
    size: int
    delimiter: str = ""
    dtype: str = "float32"
    fixed: bool = False


@dataclass(frozen=True)
class Ids:
    """A column of ids, or of lists of them.

    element: "integer", "boolean" or "text". size: how many there are; None for any. hashed: ids
    are the hashes of the elements, below `size`. listed: lists; delimiter: of a text, "" of a
    column of lists, whose records all have `length` elements unless that is None. pair: what
    stands in a text between an id and its weight; weighted: these weights are used.
    """

    column: str
    element: str
    size: int | None = None
    hashed: bool = False
    listed: bool = False
    delimiter: str = ""
    length: int | None = None
    pair: str = ""
    weighted: bool = False


@dataclass(frozen=True)
class Bucket:
    """The bins of a column of numbers: from one boundary to the next."""

    column: str
    boundaries: tuple[float, ...]

    @property
    def size(self) -> int:
        """The number of bins."""
        return len(self.boundaries) + 1


@dataclass(frozen=True)
class Cross:
    """Ids of the combinations of several columns, by a hash. size: as of Ids."""

    parts: tuple[Ids | Bucket, ...]
    size: int | None = None


Category = Ids | Bucket | Cross
Source = Number | Vector | Category

_KINDS: Mapping[str, type[Any]] = {
    kind.__name__: kind for kind in (Number, Vector, Ids, Bucket, Cross)
}


def columns_of(source: Source) -> tuple[str, ...]:
    """The columns that a source is made of."""
    if isinstance(source, Cross):
        return tuple(part.column for part in source.parts)
    return (source.column,)


@dataclass(frozen=True)
class Feature:
    """A source in the form in which a model gets it.

    said: the term of COLUMN that makes it. output: "number" (Number, Vector), or of a category
    "embedding", a vector of `dim` numbers, or "indicator", a number for each of its ids. target:
    the part of a model that it is for; "" for all. derived: the clause named the category alone,
    so that a model chooses its own form.
    """

    name: str
    source: Source
    said: str
    output: str = "number"
    dim: int = 0
    combiner: str = "sum"
    initializer: str = "uniform"
    target: str = ""
    derived: bool = False


@dataclass(frozen=True)
class Label:
    """The column that is learned.

    type: "text", "boolean", "integer" or "float". classes: its values in the order of their
    numbers; empty where they are no classes. mean, stddev: of numbers.
    """

    column: str
    type: str
    classes: tuple[str | int | bool, ...] = ()
    mean: float = 0.0
    stddev: float = 1.0


@dataclass(frozen=True)
class Plan:
    """Features and label of a model.

    types: Arrow's type of each column in use, by name. fill_missing: what stands for missing
    values, by column, as the argument of shoal.train. hints: sentences to be printed.
    """

    features: tuple[Feature, ...]
    label: Label
    types: dict[str, str] = field(default_factory=dict)
    fill_missing: dict[str, str | int | float] = field(default_factory=dict)
    hints: tuple[str, ...] = ()

    @property
    def missing_mask(self) -> list[str]:
        """Columns whose masks the model takes, as the argument of shoal.train."""
        sources = dict.fromkeys(feature.source for feature in self.features)
        return [each.column for each in sources if isinstance(each, Number) and each.masked]

    @property
    def default_model(self) -> str:
        """The model of a statement that names none: by the label."""
        return "DNNClassifier" if self.label.classes else "DNNRegressor"

    def clause(self) -> str:
        """The COLUMN clauses that say the whole plan, a line or more for each target."""
        said: dict[str, list[str]] = {}
        for feature in self.features:
            said.setdefault(feature.target, []).append(feature.said)
        lines = []
        for target, terms in said.items():
            end = target and f" FOR {target}"
            line = f"COLUMN {', '.join(terms)}{end}"
            lines.append(line if len(line) <= WIDTH else f"COLUMN {(',' + BREAK).join(terms)}{end}")
        return "\n".join(lines)

    def to_json(self) -> str:
        """The plan as text."""
        told = asdict(self)
        for each, feature in zip(told["features"], self.features, strict=True):
            each["source"] = _told(feature.source)
        return json.dumps({"format": FORMAT, **told})

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan of a text. Raises ValueError if it is none."""
        told = json.loads(text)
        if not isinstance(told, dict) or told.pop("format", None) != FORMAT:
            raise ValueError(f"not a plan of this version: its format is not {FORMAT}")
        features = tuple(
            Feature(**{**each, "source": _source(each["source"])}) for each in told["features"]
        )
        label = Label(**{**told["label"], "classes": tuple(told["label"]["classes"])})
        return cls(**{**told, "features": features, "label": label, "hints": tuple(told["hints"])})


def unique(name: str, taken: Container[str]) -> str:
    """A name of letters, digits and _ like this one, which is not taken."""
    plain = "".join(each if each.isascii() and each.isalnum() else "_" for each in name)
    plain = plain if plain[:1].isalpha() else f"column_{plain}"
    found, number = plain, 2
    while found in taken:
        found, number = f"{plain}_{number}", number + 1
    return found


def _told(source: Source) -> dict[str, Any]:
    """A source with the name of its class."""
    told = {"kind": type(source).__name__, **asdict(source)}
    if isinstance(source, Cross):
        told["parts"] = [_told(each) for each in source.parts]
    return told


def _source(told: Mapping[str, Any]) -> Any:
    values = {name: value for name, value in told.items() if name != "kind"}
    if "parts" in values:
        values["parts"] = tuple(map(_source, values["parts"]))
    if "boundaries" in values:
        values["boundaries"] = tuple(values["boundaries"])
    return _KINDS[told["kind"]](**values)
