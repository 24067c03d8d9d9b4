"""Statements of a text: which are clauses of shoal, which are SQL, and where a mistake is."""

import random

import pytest

from shoal.sql import tokens
from shoal.sql.clause import Clause, Command
from shoal.sql.errors import SqlError, place_at
from shoal.sql.tokens import Sql, statements, whole
from tests.examples import examples
from tests.sql import programs


@pytest.mark.parametrize("dialect", programs.DIALECTS)
@pytest.mark.parametrize("clause", programs.CLAUSES)
def test_each_clause_is_found_behind_each_query(clause, dialect):
    more = programs.OF_DUCKDB if dialect == "duckdb" else ()
    for query in (*programs.QUERIES, *more):
        text = f"{query}\n{clause}"
        (made,) = statements(text, dialect)
        assert isinstance(made, Clause), text
        assert made.select == query
        assert made.place == place_at(text, len(query) + 1)
        assert made.select_place.line == 1


@pytest.mark.parametrize("dialect", programs.DIALECTS)
def test_statements_of_all_kinds_may_stand_around_each_other(dialect):
    draw = random.Random(3)
    kinds = {}
    for text in (*programs.QUERIES, *programs.SQL):
        kinds[text] = Sql
    for text in programs.COMMANDS:
        kinds[text] = Command
    for clause in programs.CLAUSES:
        kinds[f"{draw.choice(programs.QUERIES)}\n{clause}"] = Clause
    for _ in range(40):
        chosen = draw.sample(list(kinds), 4)
        end = draw.choice(("", ";", "\n;\n-- the end; of all", ";;"))
        found = statements("\n;".join(chosen) + "\n" + end, dialect)
        assert [type(each) for each in found] == [kinds[text] for text in chosen]


@pytest.mark.parametrize("dialect", programs.DIALECTS)
@pytest.mark.parametrize("text", [*programs.SQL, *programs.QUERIES])
def test_sql_alone_is_left_to_the_database(text, dialect):
    (made,) = statements(f"\n{text}\n;", dialect)
    assert isinstance(made, Sql)
    assert f"\n{text}".endswith(made.text) or made.text in text
    assert made.text[0] not in "-/ \n"


@pytest.mark.parametrize("dialect", programs.DIALECTS)
@pytest.mark.parametrize(("text", "place", "message"), programs.REFUSED)
def test_a_mistake_is_refused_at_its_place(text, place, message, dialect):
    with pytest.raises(SqlError) as raised:
        statements(text, dialect)
    assert message in str(raised.value)
    assert (raised.value.place.line, raised.value.place.column) == place


@pytest.mark.parametrize("text", ["", " \n", "-- nothing", ";", "/* a; */ ; -- b"])
def test_nothing_is_no_statement(text):
    assert statements(text) == []


def mutated(draw, text):
    """A text with one to four random changes."""
    pieces = ("'", '"', ";", "--", "/*", "*/", "(", ")", "[", "]", ",", "=", "\\", "\n", "é", "\0")
    pieces += (" TO ", " TRAIN ", " LABEL ", " INTO ", " WITH ", "COLUMN ", " USING x ", " 1e")
    pieces += ("..", "@", "#", "$$", "`", "{", "}", "SHOW TRAIN ", "DROP MODEL ", "9" * 200)
    for _ in range(draw.randint(1, 4)):
        at, other = sorted(draw.randrange(len(text) + 1) for _ in range(2))
        kind = draw.random()
        if kind < 0.4:
            text = text[:at] + draw.choice(pieces) + text[at:]
        elif kind < 0.7:
            text = text[:at] + text[at + draw.randint(1, 8) :]
        else:
            text = text[:at] + text[other : other + draw.randint(1, 20)] + text[at:]
    return text


@pytest.mark.slow
def test_mutated_programs_give_statements_or_one_error_with_its_line():
    """Of each profile its share; `--hypothesis-profile=deep` tries 40,000."""
    draw = random.Random(9)
    clauses = [f"{draw.choice(programs.QUERIES)}\n{each}" for each in programs.CLAUSES]
    base = [*clauses, *programs.QUERIES, *programs.SQL, *programs.COMMANDS]
    base += [text for text, _, _ in programs.REFUSED]
    base += [";\n".join(draw.sample(base, 3)) for _ in range(20)]
    accepted = 0
    count = examples(4000)
    for _ in range(count):
        text = mutated(draw, draw.choice(base))
        mistake = None
        try:
            statements(text, draw.choice(programs.DIALECTS))
        except SqlError as error:
            mistake = error
        if mistake is None:
            accepted += 1
            continue
        line, shown, caret = mistake.explained(text).rsplit("\n", 2)
        assert line.startswith(f"line {mistake.place.line}: ")
        assert caret.strip() == "^"
        assert len(caret) <= len(shown) + 1
    assert 0 < accepted < count


def test_deep_brackets_are_an_error():
    for text in ("SELECT " + "(" * 5000 + "1", "SELECT 1 TO TRAIN m WITH a=" + "[" * 5000):
        with pytest.raises(SqlError):
            statements(text)


def test_a_long_program_takes_no_time_of_the_square_of_its_length(monkeypatch):
    """Its text is tokenized as a whole once, and each statement once more, whatever it holds."""
    read = []
    real = tokens.sqlglot.tokenize
    monkeypatch.setattr(
        tokens.sqlglot,
        "tokenize",
        lambda text, **more: read.append(len(text)) or real(text, **more),
    )
    text = "INSERT INTO t VALUES ('a; LABEL; b');\n" * 200
    assert len(statements(text)) == 200
    assert sum(read) < 3 * len(text)


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("SELECT 1", False),
        ("SELECT 1;", True),
        ("SELECT 1; -- that is all", True),
        ("SELECT ';", False),
        ("", True),
        ("-- a comment", True),
        ("SELECT * FROM t\nTO TRAIN m", False),
        ('SELECT 1 TO TRAIN m WITH a="b\\";', False),
        ('SELECT 1 TO TRAIN m WITH a="b\\";" INTO c;', True),
        ("SELECT SELECT;", True),
    ],
)
def test_a_semicolon_ends_what_is_typed(text, ends):
    assert whole(text) is ends
