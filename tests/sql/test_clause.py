"""The clause: its terms, attributes and their values, and errors with a caret."""

import pytest

from shoal.sql.clause import Parser
from shoal.sql.errors import SqlError, offset_of, place_at
from shoal.sql.terms import Call, Listed, Literal, Name, Place
from shoal.sql.tokens import statements


def clause(text):
    (made,) = statements(f"SELECT * FROM t {text}")
    return made


def values(text):
    return {each.name: each.plain() for each in clause(f"TO TRAIN m WITH {text} INTO z").attributes}


def test_terms_know_their_places():
    made = clause("\nTO TRAIN m\n  COLUMN *, EMBEDDING(CROSS([a, 'b c'], 1e2), 8) LABEL y INTO z")
    at = lambda column: Place(3, column)  # noqa: E731
    crossed = Call(
        "CROSS",
        (Listed((Name("a", at(30)), Literal("b c", at(33))), at(29)), Literal(100.0, at(41))),
        at(23),
    )
    wanted = (Name("*", at(10)), Call("EMBEDDING", (crossed, Literal(8, at(47))), at(13)))
    assert made.columns == {"": wanted}
    assert made.label == Name("y", at(56))
    assert made.into == Name("z", at(63))


def test_attributes_have_plain_values():
    text = "a=3, b=-0.5, c=[1, [x]], d=adam, e=\"it's\", f='say \"a\\'b\"', g=True, h.i=.5, j=[]"
    wanted = {"a": 3, "b": -0.5, "c": [1, ["x"]], "d": "adam", "e": "it's", "f": 'say "a\'b"'}
    assert values(text) == {**wanted, "g": True, "h.i": 0.5, "j": []}
    with pytest.raises(SqlError, match=r"not F\("):
        values("a=f(1)")


def test_columns_of_one_target_are_one_list():
    made = clause("TO TRAIN m COLUMN a FOR deep COLUMN b COLUMN c for deep COLUMN d INTO z")
    assert {key: [each.text for each in terms] for key, terms in made.columns.items()} == {
        "deep": ["a", "c"],
        "": ["b", "d"],
    }


def test_names_end_before_comments():
    made = clause("TO TRAIN a/b--c\nLABEL y/* d */INTO e-f:v1.0")
    assert (made.name.text, made.label.text, made.into.text) == ("a/b", "y", "e-f:v1.0")


def test_the_oldest_form_chooses_no_model():
    made = clause("LABEL income INTO my_elasticdl_model")
    assert (made.verb, made.name, made.label.text) == ("TRAIN", None, "income")


def test_a_label_may_be_any_column():
    for text, name in (("label", "label"), ('"monthly pay"', "monthly pay"), ("with", "with")):
        assert clause(f"TO TRAIN m LABEL {text} INTO z").label.text == name
    with pytest.raises(SqlError, match="the name of a column"):
        clause("TO TRAIN m LABEL INTO z")


def test_the_parser_ends_behind_the_semicolon():
    text = "TO EXPLAIN m; 'no lexeme of a clause is read here"
    parser = Parser(text, 0)
    parser.clause()
    assert text[parser.end :].startswith(" 'no")


def test_the_caret_stands_below_the_place_also_of_long_and_indented_lines():
    for text in ("\tSELECT x", "a" * 80 + "x" + "b" * 400, "one\n\t\ttwo x"):
        offset = text.index("x")
        place = place_at(text, offset)
        assert offset_of(text, place) == offset
        _, shown, caret = SqlError("wrong", place).explained(text).split("\n")
        assert shown[len(caret) - 1] == "x"
        assert len(shown) <= 102
        assert caret[:-1].strip(" \t") == ""
    assert SqlError("wrong").explained("text") == "wrong"


def test_a_number_or_brackets_beyond_all_use_are_refused():
    for text in ("a=" + "9" * 5000, "a=" + "[" * 80 + "]" * 80):
        with pytest.raises(SqlError, match="too "):
            values(text)
