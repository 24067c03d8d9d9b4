"""What a migration does with tables, variables and slots, for any two models."""

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.checkpoints.migration_terms import Described, Label, Wishes
from shoal.checkpoints.slot_plan import slot_sources
from shoal.checkpoints.variable_plan import row_map
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import KINDS, OptimizerSpec
from shoal.proto import shoal_pb2 as pb
from shoal.tools.migration.migration_plan import plan
from tests.examples import examples

UNIFORM = InitializerSpec("uniform").to_json()
KERNEL = "dense/kernel"


def table(name, dim, kind="adagrad", **fields):
    optimizer = OptimizerSpec(kind).to_json()
    return pb.TableSpec(name=name, dim=dim, initializer=UNIFORM, optimizer=optimizer, **fields)


def described(tables, parts, kind="adagrad", elsewhere=(), layout=None, more=()):
    """A model whose kernel reads parts: (kind, name, width), one after the other."""
    labels = tuple(
        Label(*part[:2], "", 0, i) if part[0] == "table" else Label(*part[:2], "", i, 0)
        for part in parts
        for i in range(part[2])
    )
    variables = [pb.VariableSpec(name=KERNEL, shape=[len(labels), 3])]
    offset = 3 * len(labels)
    for name, shape in more:
        variables.append(pb.VariableSpec(name=name, shape=shape, offset=offset))
        offset += int(np.prod(shape))
    optimizer = OptimizerSpec(kind).to_json()
    spec = pb.ModelSpec(tables=tables, trainable=variables, dense_optimizer=optimizer)
    return Described(spec, {KERNEL: labels if layout is None else layout}, elsewhere)


USERS, X = ("table", "users", 2), ("feature", "x", 2)
OLD = described([table("users", 2)], [USERS, X])


def kernel_of(made):
    return next(each for each in made.variables if each.name == KERNEL)


labels = st.lists(
    st.builds(
        Label,
        st.sampled_from(["table", "feature"]),
        st.sampled_from("ab"),
        st.just(""),
        st.integers(0, 2),
        st.integers(0, 2),
    ),
    max_size=20,
)


@given(labels, labels)
@settings(max_examples=examples(300))
def test_each_old_row_is_the_new_one_of_its_input_or_lost(old, new):
    rows, lost = row_map(old, new)
    assert len(rows) == len(new)
    kept = [row for row in rows if row >= 0]
    assert len(set(kept)) == len(kept)
    assert all(old[row] == label for row, label in zip(rows, new, strict=True) if row >= 0)
    left = [old[row] for row in range(len(old)) if row not in kept]
    assert sorted(left) == sorted(lost)
    # A row is 0 or lost only where the other side has no such input any more.
    missing = [label for row, label in zip(rows, new, strict=True) if row < 0]
    assert not set(missing) & set(lost)


@given(st.data())
@settings(max_examples=examples(100))
def test_products_stay_what_they_were(data):
    """Any order of old inputs, among any new ones: the old inputs give the old product."""
    width, more = data.draw(st.integers(1, 12)), data.draw(st.integers(0, 12))
    new = data.draw(st.permutations([Label("feature", "f", "", i, 0) for i in range(width + more)]))
    old = data.draw(st.permutations([each for each in new if each.position < width]))
    rows, lost = row_map(old, new)
    assert not lost
    random = np.random.default_rng(width)
    values = random.integers(-9, 9, width + more).astype(np.float64)
    kernel = random.integers(-9, 9, (width, 3)).astype(np.float64)
    grown = np.zeros((len(new), 3))
    for place, row in enumerate(rows):
        if row >= 0:
            grown[place] = kernel[row]
    before = values[[each.position for each in old]] @ kernel
    np.testing.assert_array_equal(values[[each.position for each in new]] @ grown, before)


@given(st.sampled_from(sorted(KINDS)), st.sampled_from(sorted(KINDS)))
def test_each_new_slot_has_a_source_that_there_is(before, after):
    old, new = OptimizerSpec(before), OptimizerSpec(after)
    for rows in (False, True):
        found = slot_sources(old, new, rows=rows)
        assert tuple(found) == new.slot_names
        for name, how in found.items():
            assert how == "initial" or name in old.slot_names
            if how == "kept":
                assert old.slot_width(7) == new.slot_width(7)
            elif how != "initial":
                assert {before, after} == {"adagrad", "rowwise_adagrad"}
        if before == after:
            assert set(found.values()) <= {"kept"}


def test_nothing_changes_where_nothing_is_new():
    made = plan(OLD, OLD, Wishes())
    assert (made.refused, made.notes, made.dropped) == ((), (), ())
    assert made.lines() == ["table users: kept", f"variable {KERNEL}: kept"]


def test_a_table_grows_and_a_feature_is_new():
    new = described(
        [table("shops", 2), table("users", 3)],
        [("table", "shops", 2), ("table", "users", 3), X],
    )
    made = plan(OLD, new, Wishes())
    assert made.refused == ()
    assert kernel_of(made).rows == (-1, -1, 0, 1, -1, 2, 3)
    assert [each.source for each in made.tables] == [None, 0]
    # Nothing else reads the table: its new columns may differ from 0 and learn at once.
    assert made.tables[1].fill == "initial"
    assert (
        plan(OLD, dataclasses.replace(new, elsewhere={"table users"}), Wishes()).tables[1].fill
        == "zero"
    )


@pytest.mark.parametrize(
    ("new", "wishes", "words", "accepting"),
    [
        (
            described([], [X]),
            {},
            "all rows of table 'users'.*--drop users",
            {"drop": frozenset({"users"})},
        ),
        (
            described([table("users", 1)], [("table", "users", 1), X]),
            {},
            "columns 1 to 1 of table 'users': --truncate",
            {"truncate": True},
        ),
        (
            described([table("users", 2)], [USERS, ("feature", "y", 2)]),
            {},
            "rows of variable 'dense/kernel' that read feature 'x': --drop x",
            {"drop": frozenset({"x"})},
        ),
        (
            described([table("users", 2, vocabulary=9)], [USERS, X]),
            {},
            "ids are not 0 to 8: --truncate",
            {"truncate": True},
        ),
        (
            described([table("users", 2, value_dtype="bfloat16")], [USERS, X]),
            {},
            "digits of the values of table 'users', float32 -> bfloat16",
            {"truncate": True},
        ),
        (
            described([table("users", 2)], [USERS, X, X], layout="it goes through a mystery"),
            {},
            "in the new model, it goes through a mystery.*--kernel-rows dense/kernel=FROM:TO",
            {"kernel_rows": {KERNEL: [0, 1, 4, 5]}},
        ),
        (
            described([table("users", 2)], [USERS, X, X], layout="it goes through a mystery"),
            {},
            "--reinitialise dense/kernel",
            {"reinitialise": frozenset({KERNEL})},
        ),
    ],
)
def test_losses_are_refused_without_their_flag(new, wishes, words, accepting):
    made = plan(OLD, new, Wishes(**wishes))
    assert any(re.search(words, each) for each in made.refused), made.refused
    assert plan(OLD, new, Wishes(**accepting)).refused == ()


def test_a_new_table_cannot_begin_with_the_weights_of_a_keras_model():
    given = InitializerSpec("zeros", given=True).to_json()
    shops = pb.TableSpec(
        name="shops", dim=2, initializer=given, optimizer=OptimizerSpec("adagrad").to_json()
    )
    made = plan(OLD, described([table("users", 2), shops], [USERS, X]), Wishes())
    assert [each for each in made.refused if "table 'shops', which is new" in each]
    users = table("users", 2)
    users.initializer = given  # its rows are those of the checkpoint
    assert plan(OLD, described([users], [USERS, X]), Wishes()).refused == ()


def test_a_variable_that_is_gone_and_one_that_is_new():
    old = described([], [X], more=[("old/kernel", [2, 2])])
    new = described([], [X], more=[("new/kernel", [2, 2])])
    made = plan(old, new, Wishes())
    assert "variable 'old/kernel'" in made.refused[0]
    assert any("new/kernel" in note for note in made.notes)
    renamed = plan(old, new, Wishes(rename={"old": "new"}))
    assert (renamed.refused, renamed.notes) == ((), ())
    dropped = plan(old, new, Wishes(drop=frozenset({"old"})))
    assert dropped.refused == ()
    assert dropped.dropped == ("variable old/kernel: dropped",)


def test_computed_inputs_of_another_width_are_not_guessed():
    old = described([], [X, ("computed", "cross/Mul", 3)])
    same = described([], [("computed", "cross/Mul", 3), X])
    assert kernel_of(plan(old, same, Wishes())).rows == (2, 3, 4, 0, 1)
    wider = described([], [X, ("computed", "cross/Mul", 6)])
    made = plan(old, wider, Wishes())
    assert "cross/Mul gives 3 of them in the checkpoint's model and 6" in made.refused[0]


def test_kernels_of_a_model_that_is_not_known_are_kept_only_as_they_are():
    old = dataclasses.replace(OLD, layouts={}, otherwise="its module is not known")
    assert plan(old, OLD, Wishes()).refused == ()
    new = described([table("users", 3)], [("table", "users", 3), X])
    assert "its module is not known" in plan(old, new, Wishes()).refused[0]


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"rename": {"userz": "users"}}, "--rename: the checkpoint has no 'userz'; it has"),
        ({"rename": {"users": "people"}}, "--rename: the new model has no 'people'"),
        ({"drop": frozenset({"shops"})}, "--drop: the checkpoint has no 'shops'"),
        ({"reinitialise": frozenset({"bias"})}, "--reinitialise: the new model has no 'bias'"),
        ({"kernel_rows": {KERNEL: [0, 1, 2]}}, "there are 4 old rows and 4 new ones"),
        ({"kernel_rows": {KERNEL: [0, 1, 2, 2]}}, "names 3 rows up to 2"),
        ({"kernel_rows": {KERNEL: [0, 1, 2, 9]}}, "rows up to 9"),
    ],
)
def test_names_that_there_are_not(wishes, words):
    with pytest.raises(ValueError, match=words):
        plan(OLD, OLD, Wishes(**wishes))


def test_an_optimizer_of_another_kind_keeps_values():
    new = described([table("users", 2, "adam")], [USERS, X], kind="adam")
    made = plan(OLD, new, Wishes())
    assert made.refused == ()
    assert made.tables[0].slots == {"momentum": "initial", "velocity": "initial"}
    assert made.dense_slots == {"momentum": "initial", "velocity": "initial"}
