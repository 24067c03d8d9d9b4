"""Statements of a text, and where a clause of shoal begins in each; sqlglot knows the dialect.

A clause begins at TO and a verb (in its older forms at TRAIN, PREDICT or LABEL) where the text
before it is in no string, comment or bracket, and is a query by itself. The place of the SQL
parser's first error would not do: `FROM t TO` is a table and its alias. From there on the lexer of
clause.py reads, whose strings have other rules than SQL's.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from shoal.errors import UserError
from shoal.sql.clause import LEFT_OUT, VERBS, Clause, Command, Parser
from shoal.sql.errors import START, SqlError, UnendedError, place_at
from shoal.sql.terms import Place

try:
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import ParseError, TokenError
except ImportError as error:
    raise UserError(
        "shoal sql needs sqlglot; install it with: pip install 'shoal[sql-front]'"
    ) from error

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns of what it leaves to the database


@dataclass(frozen=True)
class Sql:
    """A statement for the database alone. place: where its text begins."""

    text: str
    place: Place


Statement = Sql | Clause | Command

_MARK = "shoal_mark_"

_BLANK = r"\s|--[^\n]*(?:\n|$)|/\*.*?\*/"

_PLACES = re.compile(
    rf"(?P<end>;)|\bTO(?:{_BLANK})+(?:{'|'.join((*VERBS, *LEFT_OUT))})\b"
    r"|(?P<older>(?<!\bSHOW\s)\b(?:TRAIN|PREDICT|LABEL)\b)",
    re.IGNORECASE | re.DOTALL,
)

_COMMAND = re.compile(
    rf"(?:{_BLANK})*\b(show\s+train|show\s+models|drop\s+model)\b",
    re.IGNORECASE | re.DOTALL,
)

_QUOTES = re.compile(r"""['"`$]|/\*""")

_TRIED = 500
"""Quotes that are looked at for the one that does not end."""


def statements(text: str, dialect: str = "duckdb") -> list[Statement]:
    """The statements of a text. dialect: sqlglot's name of the SQL.

    Raises SqlError for the first mistake: then none of them is to be run.
    """
    found: list[Statement] = []
    outside, start = _Outside(text, 0, dialect), 0
    while start < len(text):
        statement, start = _statement(text, start, dialect, outside)
        if isinstance(statement, Clause):
            outside = _Outside(text, start, dialect)  # its strings have other rules
        if statement is not None:
            found.append(statement)
    return found


def whole(text: str, dialect: str = "duckdb") -> bool:
    """True if a text needs no further line: its last statement has a semicolon."""
    try:
        statements(text, dialect)
    except UnendedError:
        return False
    except SqlError:
        pass  # a further line would not mend it
    try:
        tokens = sqlglot.tokenize(text, read=dialect)
    except TokenError:  # by a string of a clause
        return text.rstrip().endswith(";")
    return not tokens or tokens[-1].text == ";"


def parsed(text: str, dialect: str, place: Place = START) -> Any:
    """The tree of one SQL statement, which begins at a place. Raises SqlError."""
    try:
        return sqlglot.parse_one(text, read=dialect)
    except ParseError as error:
        first: dict[str, Any] = {"description": "there is no statement"}
        first = error.errors[0] if error.errors else first
        description = str(first["description"]).partition(" but got <")[0]
        near = f" at {first['highlight']!r}" if first.get("highlight") else ""
        message = f"this is no SQL{near}: {description}"
        raise SqlError(message, moved(_token_at(text, first, dialect), place)) from error
    except TokenError as error:
        raise _unended(text, dialect, place) from error
    except RecursionError as error:
        raise SqlError("this is nested too deeply", place) from error


def is_query(text: str, dialect: str, place: Place = START) -> bool:
    """True if a statement gives rows, as a SELECT does. Raises SqlError if it is no SQL."""
    return isinstance(parsed(text, dialect, place), exp.Query)


def tables(text: str, dialect: str, place: Place = START) -> set[str]:
    """The names of the tables of no schema that a statement names. Raises SqlError."""
    named = parsed(text, dialect, place).find_all(exp.Table)
    return {table.name for table in named if not table.db}


def known_dialect(name: str) -> str:
    """The name, if sqlglot knows a dialect of it, else that of its own mixture."""
    return name if name in sqlglot.Dialect.classes else ""


def moved(place: Place, start: Place) -> Place:
    """A place in a part of a text, in the text. start: that of the part."""
    if place.line > 1:
        return Place(place.line + start.line - 1, place.column)
    return Place(start.line, place.column + start.column - 1)


# ------------------------------------------------------------ one statement


class _Outside:
    """Tells places that are in no string, comment or bracket, by the dialect's rules."""

    def __init__(self, text: str, start: int, dialect: str) -> None:
        self._text, self._dialect = text, dialect
        try:
            tokens = sqlglot.tokenize(text[start:], read=dialect)
        except TokenError:  # perhaps by a string of a clause
            self._known = None
        else:
            self._known = {start + offset for offset in _outer(tokens)}

    def __call__(self, start: int, offset: int) -> bool:
        """True for a word or sign that begins at an offset; start: of its statement."""
        if self._known is not None:
            return offset in self._known
        before = f"{self._text[start:offset]} "
        with contextlib.suppress(TokenError):
            tokens = sqlglot.tokenize(before + _MARK, read=self._dialect)
            return len(before) in _outer(tokens)
        return False


def _outer(tokens: list[sqlglot.Token]) -> Iterator[int]:
    """Offsets of the tokens outside of brackets."""
    depth = 0
    for token in tokens:
        depth += (token.text == "(") - (token.text == ")")
        if depth == 0:
            yield token.start


def _statement(
    text: str, start: int, dialect: str, outside: _Outside
) -> tuple[Statement | None, int]:
    """The statement that begins at an offset, and where the next one begins."""
    if command := _COMMAND.match(text, start):
        parser = Parser(text, command.start(1))
        return parser.command(), parser.end
    mistake: SqlError | None = None
    end = following = len(text)
    for found in _PLACES.finditer(text, start):
        if not outside(start, found.start()):
            continue
        if found["end"]:
            end, following = found.span()
            break
        before = text[start : found.start()]
        if not _is_query(before, dialect):
            if not found["older"]:
                mistake = mistake or _no_query(text, start, found, dialect)
            continue
        try:
            parser = Parser(text, found.start())
            clause = parser.clause()
        except SqlError as error:
            if not found["older"]:
                raise
            if found[0].upper() != "LABEL":  # more often a column of this name
                mistake = mistake or error
            continue
        begin = found.start() - len(before.lstrip())
        made = replace(
            clause,
            select=before.strip(),
            select_place=place_at(text, begin),
            text=text[begin : parser.end].rstrip("; \n\t"),
        )
        return made, parser.end
    try:
        return _sql(text, start, end, dialect), following
    except SqlError as error:
        raise mistake or error from None


def _sql(text: str, start: int, end: int, dialect: str) -> Sql | None:
    """The statement between two offsets; None if there are but comments. Raises SqlError."""
    place = place_at(text, start)
    try:
        tokens = sqlglot.tokenize(text[start:end], read=dialect)
    except TokenError as error:
        raise _unended(text[start:end], dialect, place) from error
    if not tokens:
        return None
    start += tokens[0].start
    sql = Sql(text[start:end].rstrip(), place_at(text, start))
    parsed(sql.text, dialect, sql.place)
    return sql


def _is_query(text: str, dialect: str) -> bool:
    with contextlib.suppress(ParseError, TokenError, RecursionError):
        return isinstance(sqlglot.parse_one(text, read=dialect), exp.Query)
    return False


def _no_query(text: str, start: int, found: re.Match[str], dialect: str) -> SqlError:
    """The error of a clause behind what is no query."""
    before = text[start : found.start()]
    tokens = sqlglot.tokenize(before, read=dialect)
    place = place_at(text, start + tokens[0].start if tokens else found.start())
    if tokens and tokens[0].text.upper() in ("SELECT", "WITH", "FROM", "("):
        try:
            parsed(before, dialect, place_at(text, start))
        except SqlError as error:
            return error
    return SqlError(f"a SELECT is expected before {f'TO {found[0].split()[-1].upper()}'}", place)


# ------------------------------------------------------------ places of mistakes


def _token_at(text: str, error: dict[str, Any], dialect: str) -> Place:
    """The place where the token of a parser's error begins; its own is where that ends."""
    ends = error.get("line"), error.get("col")
    tokens = sqlglot.tokenize(text, read=dialect)
    for token in tokens:
        if (token.line, token.col) == ends:
            return place_at(text, token.start)
    return place_at(text, tokens[-1].start if tokens else 0)


def _unended(text: str, dialect: str, place: Place) -> SqlError:
    """The error of the quote or comment that does not end: the last that is not in another."""
    for found in [*_QUOTES.finditer(text)][: -_TRIED - 1 : -1]:
        with contextlib.suppress(TokenError):
            tokens = sqlglot.tokenize(f"{text[: found.start()]} {_MARK}", read=dialect)
            if tokens and tokens[-1].text == _MARK:
                kind = "comment" if found[0] == "/*" else "quote"
                at = moved(place_at(text, found.start()), place)
                return UnendedError(f"this {kind} does not end", at)
    return UnendedError("a quote or a comment of this statement does not end", place)
