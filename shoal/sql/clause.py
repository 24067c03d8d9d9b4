"""The clause behind a SELECT: TO TRAIN, TO PREDICT, TO EVALUATE, TO EXPLAIN; its lexer and parser.

Also the commands about models: SHOW TRAIN, SHOW MODELS, DROP MODEL. Where a clause begins is found
by tokens.py. Three generations of the grammar are taken: `LABEL y INTO m` and `TRAIN x ... INTO m`
right behind the SELECT are the older two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from shoal.sql.errors import START, SqlError, UnendedError, place_at
from shoal.sql.terms import Call, Listed, Literal, Name, Place, Term

VERBS = ("TRAIN", "PREDICT", "EVALUATE", "EXPLAIN")

LEFT_OUT = {
    "RUN": "run the program by itself",
    "MAXIMIZE": "use a solver for linear programs",
    "MINIMIZE": "use a solver for linear programs",
}
"""Verbs of SQLFlow that shoal has not, and what to do instead."""

KEYWORDS = frozenset({"TO", "WITH", "COLUMN", "FOR", "LABEL", "USING", "INTO"})
"""Words that are no names in a clause; a column of such a name is put in quotes."""

_LONGEST_NUMBER = 100

_DEEPEST = 50
"""Brackets in brackets, far below Python's own limit."""

_LEXEME = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)"""
    r"""|(?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"""
    r"""|(?P<name>[^\W\d](?:[\w:]|\.(?=\w)|/(?!\*)|-(?!-))*)"""
    r"""|(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
    r"""|(?P<sign>[*=()\[\],;])""",
    re.DOTALL,
)


@dataclass(frozen=True)
class Attribute:
    """NAME=value of WITH. place: of the name."""

    name: str
    value: Term
    place: Place

    def plain(self) -> object:
        """The value as Python has it: names are texts, lists are lists. Raises SqlError."""
        return _plain(self.value)


def _plain(term: Term) -> object:
    match term:
        case Literal(value):
            return value
        case Name(text):
            return {"TRUE": True, "FALSE": False}.get(text.upper(), text)
        case Listed(items):
            return [_plain(each) for each in items]
        case Call(name):
            raise SqlError(f"a number, a text or a list is expected here, not {name}(", term.place)


@dataclass(frozen=True)
class Clause:
    """A clause of shoal and the SELECT before it.

    verb: one of VERBS. name: of the model, or for PREDICT of the table that gets the predictions.
    of TRAIN it is None where shoal is to choose the model. columns: the terms of COLUMN by the
    name behind FOR, "" without. select, select_place: the query, and where it begins. text: of the
    whole statement.
    """

    verb: str
    name: Name | None
    place: Place
    attributes: tuple[Attribute, ...] = ()
    columns: dict[str, tuple[Term, ...]] = field(default_factory=dict)
    label: Name | None = None
    using: Name | None = None
    into: Name | None = None
    select: str = ""
    select_place: Place = START
    text: str = ""


@dataclass(frozen=True)
class Command:
    """SHOW TRAIN name, SHOW MODELS or DROP MODEL name. words: the first two, in upper case."""

    words: str
    name: Name | None
    place: Place


class Parser:
    """A parser of the text of all statements, from one offset on."""

    def __init__(self, text: str, offset: int) -> None:
        self._text = text
        self._behind = offset  # the lexeme before ends here
        self._offset = offset  # the lexeme begins here
        self._kind = self._value = ""
        self._ends = offset
        self._depth = 0
        self._next()

    @property
    def end(self) -> int:
        """Offset of what is not read yet, behind the last semicolon."""
        return len(self._text) if self._kind == "end" else self._behind

    # ------------------------------------------------------------ statements

    def clause(self) -> Clause:
        """The clause that begins here, up to its semicolon or the end. Raises SqlError."""
        place = self._place()
        if self._word() == "LABEL":
            made = Clause("TRAIN", None, place, label=self._label(), into=self._into("model"))
        else:
            self._takes("TO")
            verb = self._word()
            if verb in LEFT_OUT:
                raise self._error(f"TO {verb} is not part of shoal: {LEFT_OUT[verb]}")
            if verb not in VERBS:
                raise self._expected(" or ".join(VERBS))
            self._next()
            made = getattr(self, f"_{verb.lower()}")(place)
        self._ended()
        return made

    def command(self) -> Command:
        """SHOW TRAIN name, SHOW MODELS or DROP MODEL name. Raises SqlError."""
        place = self._place()
        words = f"{self._next()} {self._next()}".upper()
        name = None if words == "SHOW MODELS" else self._name("the name of a model")
        self._ended()
        return Command(words, name, place)

    def _train(self, place: Place) -> Clause:
        name = self._name("the name of a model")
        attributes = self._attributes()
        columns: dict[str, tuple[Term, ...]] = {}
        while self._takes("COLUMN"):
            found = self._terms()
            named = self._takes("FOR")
            target = self._name("a name such as dnn_feature_columns").text if named else ""
            columns[target] = columns.get(target, ()) + found
        label = self._label() if self._word() == "LABEL" else None
        into = self._into("model")
        return Clause("TRAIN", name, place, attributes, columns, label, into=into)

    def _predict(self, place: Place) -> Clause:
        name = self._name("the table and column of the predictions")
        attributes = self._attributes()  # SQLFlow has them behind USING, shoal in both places
        if not self._takes("USING"):
            raise self._expected("USING and the name of a model")
        using = self._name("the name of a model")
        return Clause("PREDICT", name, place, attributes or self._attributes(), using=using)

    def _evaluate(self, place: Place) -> Clause:
        name = self._name("the name of a model")
        attributes = self._attributes()
        label = self._label() if self._word() == "LABEL" else None
        into = self._into("table") if self._word() == "INTO" else None
        return Clause("EVALUATE", name, place, attributes, label=label, into=into)

    def _explain(self, place: Place) -> Clause:
        name = self._name("the name of a model")
        attributes = self._attributes()
        using = self._name("the name of an explainer") if self._takes("USING") else None
        into = self._into("table") if self._word() == "INTO" else None
        return Clause("EXPLAIN", name, place, attributes, using=using, into=into)

    # ------------------------------------------------------------ parts

    def _attributes(self) -> tuple[Attribute, ...]:
        found: dict[str, Attribute] = {}
        if not self._takes("WITH"):
            return ()
        while True:
            name = self._name("an attribute such as train.epoch")
            if not self._takes("="):
                raise self._expected(f"= and a value for {name.text}")
            if name.text in found:
                raise SqlError(f"{name.text} is given twice", name.place)
            found[name.text] = Attribute(name.text, self._term(), name.place)
            if not self._takes(","):
                return tuple(found.values())

    def _label(self) -> Name:
        self._next()
        place = self._place()
        if self._kind == "string":
            return Name(_unquoted(self._next()), place)
        if self._word() not in ("", "INTO"):  # no other word is expected: `LABEL label`
            return Name(self._next(), place)
        raise self._expected("the name of a column")

    def _into(self, kind: str) -> Name:
        if not self._takes("INTO"):
            raise self._expected(f"INTO and a name for the {kind}")
        return self._name(f"a name for the {kind}")

    def _terms(self) -> tuple[Term, ...]:
        """Terms with commas between them."""
        found = [self._term()]
        while self._takes(","):
            found.append(self._term())
        return tuple(found)

    def _term(self) -> Term:
        place = self._place()
        if self._kind == "number":
            return Literal(_number(self._next(), place), place)
        if self._kind == "string":
            return Literal(_unquoted(self._next()), place)
        if self._takes("*"):
            return Name("*", place)
        if self._takes("["):
            return Listed(self._closed("]"), place)
        name = self._name("a column or a value")
        if self._takes("("):
            return Call(name.text.upper(), self._closed(")"), place)
        return name

    def _closed(self, bracket: str) -> tuple[Term, ...]:
        """Terms up to a bracket, of which there may be none."""
        if self._takes(bracket):
            return ()
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error("there are too many brackets in brackets here")
        found = self._terms()
        self._depth -= 1
        if not self._takes(bracket):
            raise self._expected(f", or {bracket}")
        return found

    def _name(self, what: str) -> Name:
        if self._kind != "name" or self._word() in KEYWORDS:
            raise self._expected(what)
        place = self._place()
        return Name(self._next(), place)

    def _ended(self) -> None:
        if self._kind != "end" and not self._takes(";", reads=False):
            rest = " ".join(self._text[self._offset :].split())
            shown = rest if len(rest) <= 40 else f"{rest[:40]} ..."
            raise self._error(f"; is expected before {shown!r}")

    # ------------------------------------------------------------ lexemes

    def _next(self) -> str:
        """The lexeme, and go on to the one behind it. Raises SqlError."""
        taken, self._behind = self._value, self._ends
        at = self._ends
        while found := _LEXEME.match(self._text, at):
            if found.lastgroup != "space":
                self._kind, self._value = found.lastgroup or "", found[0]
                self._offset, self._ends = found.span()
                return taken
            at = found.end()
        self._kind, self._value, self._offset, self._ends = "end", "", at, at
        if at < len(self._text):
            raise _senseless(self._text, at)
        return taken

    def _word(self) -> str:
        return self._value.upper() if self._kind == "name" else ""

    def _takes(self, word: str, *, reads: bool = True) -> bool:
        """True if the lexeme is a word or sign, which is gone past then.

        reads: with the one behind it, which may be SQL behind a semicolon.
        """
        if self._kind == "string" or self._value.upper() != word:
            return False
        if reads:
            self._next()
        else:
            self._behind = self._ends
        return True

    def _place(self) -> Place:
        # What is missing at the end is missing behind the last word, not below a comment.
        return place_at(self._text, self._behind if self._kind == "end" else self._offset)

    def _error(self, message: str) -> SqlError:
        return SqlError(message, self._place())

    def _expected(self, what: str) -> SqlError:
        verb = "are" if " and " in what else "is"
        return self._error(f"{what} {verb} expected here")


def _senseless(text: str, offset: int) -> SqlError:
    """The error of a character that begins nothing."""
    place = place_at(text, offset)
    if text[offset] in "'\"":
        return UnendedError("this quote does not end", place)
    if text.startswith("/*", offset):
        return UnendedError("this comment does not end", place)
    return SqlError(f"{text[offset]!r} has no meaning here", place)


def _number(text: str, place: Place) -> int | float:
    if len(text) > _LONGEST_NUMBER:
        raise SqlError("this number is too long", place)
    return float(text) if set(text) & set(".eE") else int(text)


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)
