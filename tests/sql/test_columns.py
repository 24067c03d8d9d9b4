"""Terms of COLUMN and LABEL to a plan: names, derived columns, and what is refused where."""

import ast
import re
import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shoal.sql import module
from shoal.sql.columns import SelectSchema, plan
from shoal.sql.errors import SqlError
from shoal.sql.models.attributes import MODELS
from shoal.sql.models.features import USAGES
from shoal.sql.models.plan import Plan, unique
from shoal.sql.terms import Call, Listed, Literal, Name, Place
from tests.examples import examples
from tests.sql.statements import Terms, planned_of

t = Terms()

SCHEMA = {
    "age": pa.int64(),
    "Price": pa.decimal128(10, 2),
    "share": pa.float32(),
    "sex": pa.dictionary(pa.int32(), pa.string()),
    "born": pa.date32(),
    "tags": pa.list_(pa.int64()),
    "words": pa.list_(pa.string()),
    "floats": pa.list_(pa.float32()),
    "nested": pa.list_(pa.list_(pa.int64())),
    "place": pa.struct([("x", pa.int64())]),
    "nothing": pa.null(),
    "one two": pa.string(),
    "text": pa.large_string(),
    "member": pa.bool_(),
    "buys": pa.int64(),
}
STATISTICS = {
    "columns": {
        "age": {
            "mean": 40.5,
            "stddev": 10.0,
            "missing": 3,
            "distinct": 70,
            "quantiles": [*range(101)],
        },
        "share": {"mean": float("inf"), "stddev": float("nan"), "missing": 0},
        "buys": {
            "missing": 0,
            "distinct": 2,
            "min": 0,
            "max": 1,
            "mean": 0.5,
            "stddev": 0.5,
            "vocabulary": {"values": [1, 0], "complete": True},
        },
    }
}


def planned(*terms, label="buys", statistics=STATISTICS, **parts):
    return planned_of(SCHEMA.items(), statistics, label, *terms, **parts)


def test_names_are_found_as_sql_finds_them():
    plan = planned("people.age", "PRICE", "sex")
    assert [each.source.column for each in plan.features] == ["age", "Price", "sex"]
    assert plan.types == {
        "age": "int64",
        "Price": "decimal128(10, 2)",
        "sex": "dictionary<values=string, indices=int32, ordered=0>",
        "buys": "int64",
    }
    assert plan.missing_mask == ["age"]
    assert plan.fill_missing == {"age": 40, "Price": 0.0, "sex": ""}


def test_a_star_stands_for_the_columns_that_no_other_term_has():
    schema = {name: SCHEMA[name] for name in ("age", "sex", "one two", "tags", "buys")}
    plan = planned_of(schema.items(), STATISTICS, "buys", "*", t.EMBEDDING("sex", 4))
    assert plan.clause() == ('COLUMN age, CATEGORY_HASH("one two"), tags, EMBEDDING(sex, 4)')
    derived = planned_of(schema.items(), STATISTICS, "buys")
    assert derived.clause() == ('COLUMN age, CATEGORY_HASH(sex), CATEGORY_HASH("one two"), tags')
    assert [each.name for each in derived.features] == ["age", "sex", "one_two", "tags"]


def test_parts_have_clauses_and_features_names_of_their_own():
    plan = planned(
        linear_feature_columns=["sex", t.CROSS(["sex", "age"])],
        DNN_feature_columns=[t.EMBEDDING("sex", 4), "*"][:1],
    )
    assert plan.clause() == (
        "COLUMN CATEGORY_HASH(sex), CROSS([sex, age]) FOR linear_feature_columns\n"
        "COLUMN EMBEDDING(sex, 4) FOR dnn_feature_columns"
    )
    assert [each.name for each in plan.features] == ["sex", "sex_age", "sex_2"]


def test_many_integers_are_told_of():
    statistics = {"columns": STATISTICS["columns"] | {"age": {"distinct": 1_200_000}}}
    assert planned("age", statistics=statistics).hints == (
        "age has 1,200,000 different values and is taken for a number; if they are ids: "
        "EMBEDDING(age, 16)",
    )


def numbers(values):
    return {
        "missing": 0,
        "distinct": len(values),
        "min": min(values),
        "max": max(values),
        "mean": 1.0,
        "stddev": 1.0,
        "vocabulary": {"values": values, "complete": True},
    }


@pytest.mark.parametrize(
    ("kind", "told", "classes"),
    [
        (pa.int64(), numbers([1, 0]), (0, 1)),
        (pa.int8(), numbers([3, 0, 1]), (0, 1, 2, 3)),
        (pa.int64(), numbers([1, -1]), (-1, 1)),
        (pa.int64(), numbers([7, 70]), (7, 70)),
        (pa.int64(), numbers([*range(50)]), ()),
        (pa.int64(), numbers([5]), ()),
        (pa.int64(), {}, ()),
        (pa.bool_(), {}, (False, True)),
        (pa.float32(), numbers([1.0, 0.0]), (0, 1)),
        (pa.float32(), numbers([1.0, 0.5]), ()),
        (pa.string(), numbers(["b", "a"]), ("a", "b")),
    ],
)
def test_a_label_s_type_and_values_say_if_it_has_classes(kind, told, classes):
    plan = planned_of([("x", pa.int64()), ("y", kind)], {"columns": {"y": told}}, "y")
    assert plan.label.classes == classes
    assert plan.default_model == ("DNNClassifier" if classes else "DNNRegressor")
    assert Plan.from_json(plan.to_json()) == plan


def refused(*terms, **given):
    """The error of a statement, whose text says of which term its place is."""
    with pytest.raises(SqlError) as error:
        planned(*terms, **given)
    return error.value


def at(term, *path):
    """The place of a term within a call: of the arguments, or of a list's items, by number."""
    for number in path:
        term = (term.items if isinstance(term, Listed) else term.arguments)[number]
    return term.place


@pytest.mark.parametrize(
    ("term", "path", "message"),
    [
        (t.term("agee"), (), r"the SELECT gives no column 'agee' \(did you mean age\?\)"),
        (t.EMBEDING("age", 8), (), r"no function EMBEDING \(did you mean EMBEDDING\?\)"),
        (t.EMBEDDING(t.HASHED("age"), 8), (0,), "there is no function HASHED"),
        (t.EMBEDDING("age"), (), r"EMBEDDING\(column, dim\[.* is not given 1 terms"),
        (t.EMBEDDING("age", 0), (1,), "a positive whole number is expected"),
        (t.EMBEDDING("age", "age"), (1,), "a positive whole number is expected"),
        (t.EMBEDDING("age", 8, "som"), (2,), r"no combiner 'som' \(did you mean sum\?\)"),
        (t.EMBEDDING("age", 8, "sum", "zeroes"), (3,), r"no initializer .*mean zeros or"),
        (t.EMBEDDING("share", 8), (0,), r"share is of type float.*BUCKET\(share, 10\)"),
        (t.EMBEDDING(t.DENSE("age", 1), 8), (0,), "DENSE makes no category"),
        (t.EMBEDDING("buys", 8), (0,), "buys is the label"),
        (t.term("born"), (), r"born is of type date32.*extract\(hour FROM born\)"),
        (t.term("place"), (), "place is of type struct"),
        (t.term("nested"), (), "nested is of type list"),
        (t.term("nothing"), (), "nothing has no values"),
        (t.term("floats"), (), r"DENSE\(floats, size\) says"),
        (t.term("share"), (), "share has infinite values"),
        (t.CATEGORY_ID("sex"), (), "is not given 1 terms"),
        (t.CATEGORY_ID("words", 8), (0,), "words has texts: CATEGORY_HASH"),
        (t.CATEGORY_ID(t.CROSS(["sex", "age"]), 8), (0,), "name is expected here, not CROSS"),
        (t.CATEGORY_HASH(3), (0,), "a column's name is expected"),
        (t.INDICATOR("sex"), (0,), r"INDICATOR\(CATEGORY_HASH\(sex, size\)\)"),
        (t.INDICATOR(t.CATEGORY_HASH("sex", 10_001)), (0,), "10,001 numbers, and 10,000"),
        (
            t.INDICATOR(t.WEIGHTED_CATEGORY(t.SPARSE("text", 9, ",", "int", ":"))),
            (0,),
            "no weights",
        ),
        (t.WEIGHTED_CATEGORY("tags"), (0,), "WEIGHTED_CATEGORY needs weights"),
        (t.SPARSE("tags", 9, ",", "int", ":"), (0,), "tags is no text"),
        (t.SPARSE("text", 9, "KOMMA"), (2,), r"no delimiter KOMMA \(did you mean COMMA\?\)"),
        (t.SPARSE("text", 9, ""), (2,), "a delimiter is expected"),
        (t.SPARSE("text", 9, ",", "integer"), (3,), r"no type 'integer' \(did you mean"),
        (t.CROSS("sex"), (0,), "CROSS takes a list of two columns or more"),
        (t.CROSS(["sex"]), (0,), "CROSS takes a list of two columns or more"),
        (t.CROSS(["sex", "tags"]), (0, 1), "CROSS takes columns with one value"),
        (t.CROSS(["sex", "agee"]), (0, 1), "no column 'agee'"),
        (t.BUCKET("text", 10), (0,), "BUCKET needs a number, and text is of type large_string"),
        (t.BUCKET("age", [3, 3]), (1,), "numbers that ascend"),
        (t.BUCKET("age", [3, "x"]), (1, 1), "a number is expected"),
        (t.BUCKET("age", 1), (1,), "two bins are the least"),
        (t.BUCKET("Price", 10), (1,), "the values of Price are not known"),
        (t.DENSE("age", 2), (), "each row of age has 1 numbers, not 2"),
        (t.DENSE("words", 2), (0,), "DENSE needs numbers"),
        (t.DENSE("text"), (0,), r"DENSE\(text, size\) says"),
        (t.DENSE("text", 2, ",", "string"), (3,), "no type 'string'"),
    ],
)
def test_a_wrong_term_is_refused_at_its_place(term, path, message):
    error = refused(term)
    assert re.search(message, str(error)), str(error)
    assert error.place == at(term, *path)


@pytest.mark.parametrize(
    ("label", "told", "message"),
    [
        ("bys", {}, r"no column 'bys' \(did you mean buys\?\)"),
        ("born", {}, "the label born is of type date32"),
        ("tags", {}, "the label tags is of type list"),
        ("text", {}, "the label text is text, and its values are not known"),
        ("age", {}, "the label age is missing in 3 rows.*WHERE age IS NOT NULL"),
        (
            "text",
            {"distinct": 20_000, "vocabulary": {"values": ["a"] * 10_000, "complete": False}},
            "20,000 different values, and 2 to 10,000",
        ),
        ("text", {"distinct": 1, "vocabulary": {"values": ["a"], "complete": True}}, "1 different"),
    ],
)
def test_a_wrong_label_is_refused_at_its_place(label, told, message):
    statistics = {"columns": STATISTICS["columns"] | ({label: told} if told else {})}
    error = refused("sex", label=label, statistics=statistics)
    assert re.search(message, str(error)), str(error)
    assert (error.place.line, error.place.column) == (1, 2)


def test_for_names_a_part_that_there_is():
    error = refused(linear_columns=["age"])
    assert re.search(r"part linear_columns .*\(did you mean linear_feature_columns", str(error))
    assert error.place == Place(1, 1)


def test_a_label_alone_is_refused():
    with pytest.raises(SqlError, match="no column beside the label"):
        planned_of([("y", pa.int64())], {}, "y")


# ------------------------------------------------------------ models and attributes


def refused_text(plan, model, attributes=None, places=None):
    with pytest.raises(SqlError) as error:
        module.text(plan, model, attributes, places)
    return error.value


THERE = Place(3, 7)


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        (
            "model.hiden_units",
            [8],
            r"no attribute model.hiden_units \(did you mean model.hidden_units",
        ),
        ("model.hidden_units", [8, 0], "must be a list of positive whole numbers, not"),
        ("model.hidden_units", "8", "must be a list of positive whole numbers, not '8'"),
        ("model.dropout", 1, "must be a number from 0 to below 1, not 1"),
        ("model.n_classes", 1, "model.n_classes is 1, and the label buys has 2 classes"),
        ("optimizer", "Adamm", "must be one of Adam, AdamW"),
        ("optimizer.learning_rate", 0, "must be a positive number, not 0"),
        ("optimizer.learning_rate", True, "must be a positive number, not True"),
        ("validation.metrics", "AUC,F1", r"there is no metric f1"),
        ("validation.metrics", 3, "must be a text, not 3"),
    ],
)
def test_a_wrong_attribute_is_refused_by_name(attribute, value, message):
    error = refused_text(planned("age"), "DNNClassifier", {attribute: value}, {attribute: THERE})
    assert re.search(message, str(error)), str(error)
    assert error.place == THERE


def test_attributes_are_constants_in_sight():
    given = {
        "model.dnn_hidden_units": 16,
        "model.dropout": 0.25,
        "model.optimizer": "AdagradOptimizer",
    }
    text = module.text(
        planned("age"), "dnnclassifier", given | {"validation.metrics": "Recall, auc"}
    )
    for line in ("HIDDEN_UNITS = (16,)", "DROPOUT = 0.25", "LEARNING_RATE = 0.05"):
        assert f"\n{line}\n" in text
    assert "keras.optimizers.Adagrad(LEARNING_RATE)" in text
    assert '{"recall": keras.metrics.Recall(), "auc": keras.metrics.AUC()}' in text
    assert "softmax" in module.text(planned("age"), "DNNClassifier", {"model.n_classes": 3})


def test_models_and_attributes_are_known_by_name():
    assert module.known_models == tuple(MODELS)
    assert module.known_attributes("DEEPFM") is MODELS["DeepFM"]
    error = refused_text(planned("age"), "DNNClassifer", places={"": THERE})
    assert re.search(r"no model DNNClassifer \(did you mean DNNClassifier", str(error))
    assert error.place == THERE


@pytest.mark.parametrize(
    ("terms", "parts", "model", "message"),
    [
        (["age"], {}, "DeepFM", "two or more"),
        (
            [t.EMBEDDING("age", 8), t.EMBEDDING("sex", 4)],
            {},
            "DeepFM",
            r"one length: give EMBEDDING\(age, 8\) and EMBEDDING\(sex, 4\)",
        ),
        ([], {"linear_feature_columns": ["age"]}, "DNNClassifier", "has no linear part"),
        (
            [],
            {"linear_feature_columns": ["age"]},
            "DNNLinearCombinedClassifier",
            "no column is FOR dnn_feature_columns",
        ),
    ],
)
def test_columns_that_a_model_cannot_have_are_refused(terms, parts, model, message):
    assert re.search(message, str(refused_text(planned(*terms, **parts), model)))


@pytest.mark.parametrize(
    ("label", "model", "message"),
    [
        ("text", "DNNRegressor", "the label text is text: take DNNClassifier"),
        ("Price", "LinearClassifier", "the label Price has numbers: take LinearRegressor"),
        ("text", "DCN", "model.n_classes is 4, and the label text has 3 classes"),
        ("text", "DeepFM", "DeepFM tells two classes apart, and text has 3"),
    ],
)
def test_a_label_of_another_type_than_the_model_wants_is_refused(label, model, message):
    told = {"text": numbers(["a", "b", "c"])}
    plan = planned("sex", "tags", label=label, statistics={"columns": told})
    given = {"model.n_classes": 4} if model == "DCN" else {}
    error = refused_text(plan, model, given, {"": THERE, "model.n_classes": THERE})
    assert message in str(error)
    assert error.place == THERE


def test_odd_names_are_texts_of_the_module_and_never_its_code():
    name = 'a"""b\\n\n{x} \u2028é'
    plan = planned_of([(name, pa.string()), ("1", pa.int64()), ("y", pa.bool_())], {}, "y")
    made = {}
    tree = compile(module.text(plan), "model.py", "exec", ast.PyCF_ONLY_AST)
    constants = {each.value for each in ast.walk(tree) if isinstance(each, ast.Constant)}
    assert {name, "1", "y"} <= constants
    assert [each.name for each in plan.features] == [unique(name, made), "column_1"]


@settings(max_examples=examples(100))
@given(st.text(min_size=1))
def test_any_name_of_a_column_makes_a_module(name):
    assume(name.encode(errors="ignore").decode() == name and name != "y" and name != "*")
    plan = planned_of([(name, pa.string()), ("y", pa.bool_())], {}, "y", Literal(name, Place(1, 1)))
    tree = ast.parse(module.text(plan, "DNNLinearCombinedClassifier"))
    assert name in {each.value for each in ast.walk(tree) if isinstance(each, ast.Constant)}


def words():
    names = st.sampled_from([*SCHEMA, "agee", "*", "COMMA", "sum"]).map(
        lambda n: Name(n, Place(1, 1))
    )
    values = st.integers(-2, 20_000) | st.floats() | st.sampled_from([",", "int", "age", ""])
    return names | values.map(lambda value: Literal(value, Place(1, 1)))


def terms():
    functions = st.sampled_from([*USAGES, "OTHER"])
    return st.recursive(
        words(),
        lambda inner: (
            st.builds(lambda items: Listed(tuple(items), Place(1, 1)), st.lists(inner, max_size=3))
            | st.builds(
                lambda name, items: Call(name, tuple(items), Place(1, 1)),
                functions,
                st.lists(inner, max_size=5),
            )
        ),
        max_leaves=8,
    )


@settings(max_examples=examples(400))
@given(st.lists(terms(), max_size=3), st.sampled_from([*MODELS]))
def test_any_terms_make_a_module_or_an_error_with_a_place(given_terms, model):
    schema, label = SelectSchema(SCHEMA), Name("buys", Place(1, 1))
    made, error = outcome(plan, {"": given_terms}, label, schema, STATISTICS)
    if error is not None:
        assert error.place == Place(1, 1)
        return
    assert Plan.from_json(made.to_json()) == made
    text, error = outcome(module.text, made, model)
    if error is None:
        ast.parse(text)
    else:
        assert str(error).startswith("DeepFM multiplies")


def outcome(function, *arguments):
    """The result of a function, or its SqlError."""
    try:
        return function(*arguments), None
    except SqlError as error:
        return None, error


def test_no_framework_is_loaded():
    """And nothing that loads one: a statement is checked before a job begins."""
    code = (
        "import sys, shoal.sql.module, shoal.sql.columns\n"
        "print([n for n in ('tensorflow', 'keras', 'torch', 'jax') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
