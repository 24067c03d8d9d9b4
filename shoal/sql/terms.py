"""Terms of a clause: what stands in COLUMN, LABEL and WITH."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """The place of a term: line and column, from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Name:
    """A bare name or `*`: a column, a delimiter such as COMMA, a combiner."""

    text: str
    place: Place


@dataclass(frozen=True)
class Literal:
    """A number or a string."""

    value: int | float | str
    place: Place


@dataclass(frozen=True)
class Listed:
    """Terms in brackets."""

    items: tuple["Term", ...]
    place: Place


@dataclass(frozen=True)
class Call:
    """NAME(term, …); the name in upper case."""

    name: str
    arguments: tuple["Term", ...]
    place: Place


Term = Name | Literal | Listed | Call
