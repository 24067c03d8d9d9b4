"""The plan of a migration: what becomes of each table and dense variable of a checkpoint.

Pure decisions: from the models of the checkpoint and of the job to come, the layouts of their
kernels and what the user accepts to lose. Reads and writes no file (migration.py does). The
layouts come from a trace of the models (worker/engines/tensorflow/model/kernel_layout.py);
variable_plan.py decides on dense variables by them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.checkpoints.migration_terms import Described, Wishes, loses_ids, value_dtype
from shoal.checkpoints.slot_plan import SlotSource, slot_sources
from shoal.checkpoints.variable_plan import VariablePlan, plan_variables
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import shoal_pb2 as pb


@dataclass(frozen=True)
class TablePlan:
    """The origin of the rows of a new table.

    source: its position in the checkpoint; None for a table that is new. slots: the origin of each
    new optimizer slot. fill: new columns are "zero", or "initial" as in rows that were never
    trained. vocabulary: rows of ids that are not below it are left out; 0 for none.
    """

    name: str
    source: int | None
    words: tuple[str, ...]
    slots: Mapping[str, SlotSource] = field(default_factory=dict)
    fill: str = "zero"
    vocabulary: int = 0


@dataclass(frozen=True)
class Plan:
    """A migration. spec: of the new model. dropped: what is left out, in words.

    refused: what would be lost or is not known, each with the flag that accepts or tells it. notes:
    what may change predictions.
    """

    spec: pb.ModelSpec
    tables: tuple[TablePlan, ...]
    variables: tuple[VariablePlan, ...]
    dense_slots: Mapping[str, SlotSource]
    dropped: tuple[str, ...]
    refused: tuple[str, ...]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """The plan in words, a line for each table and variable."""
        lines = [f"table {each.name}: {', '.join(each.words)}" for each in self.tables]
        lines += [f"variable {each.name}: {', '.join(each.words)}" for each in self.variables]
        return [*lines, *self.dropped, *(f"Note: {each}" for each in self.notes)]


def plan(old: Described, new: Described, wishes: Wishes) -> Plan:
    """The plan for each table and variable. Raises ValueError for names that nothing has."""
    _check_names(old, new, wishes)
    refused: list[str] = []
    notes: list[str] = []
    dropped: list[str] = []
    tables = _tables(old, new, wishes, refused, dropped, notes)
    variables = plan_variables(old, new, wishes, refused, dropped, notes)
    notes += _features(old, new, wishes)
    before = OptimizerSpec.from_json(old.spec.dense_optimizer)
    after = OptimizerSpec.from_json(new.spec.dense_optimizer)
    slots = slot_sources(before, after, rows=False)
    if new.spec.trainable and old.spec.trainable and before.rule != after.rule:
        notes.append(
            f"optimizer of the dense variables: {before.kind} -> {after.kind}, "
            f"slots {_slot_words(slots)}"
        )
    return Plan(new.spec, tables, variables, slots, tuple(dropped), tuple(refused), tuple(notes))


def _check_names(old: Described, new: Described, wishes: Wishes) -> None:
    theirs, ours = _names(old), _names(new)
    for flag, names, known, which in (
        ("--rename", wishes.rename.keys(), theirs, "the checkpoint"),
        ("--rename", wishes.rename.values(), ours, "the new model"),
        ("--drop", wishes.drop, theirs, "the checkpoint"),
        ("--reinitialise", wishes.reinitialise, ours, "the new model"),
        ("--kernel-rows", wishes.kernel_rows, ours, "the new model"),
    ):
        for name in names:
            if not any(each == name or each.startswith(f"{name}/") for each in known):
                listed = ", ".join(sorted(known)) or "nothing"
                raise ValueError(f"{flag}: {which} has no {name!r}; it has {listed}")
    targets = Counter(wishes.renamed(name) for name in _names(old, features=False))
    for name, count in targets.items():
        if count > 1:
            raise ValueError(f"--rename: {count} tables or variables would be named {name!r}")


def _names(model: Described, *, features: bool = True) -> set[str]:
    names = {table.name for table in model.spec.tables}
    names |= {each.name for each in (*model.spec.trainable, *model.spec.non_trainable)}
    if features:
        names |= {
            label.name
            for layout in model.layouts.values()
            if not isinstance(layout, str)
            for label in layout
        }
    return names


# ---------------------------------------------------------------- tables


def _tables(
    old: Described,
    new: Described,
    wishes: Wishes,
    refused: list[str],
    dropped: list[str],
    notes: list[str],
) -> tuple[TablePlan, ...]:
    saved = {wishes.renamed(table.name): i for i, table in enumerate(old.spec.tables)}
    plans = []
    for table in new.spec.tables:
        position = saved.pop(table.name, None)
        if position is None:
            plans.append(TablePlan(table.name, None, (f"new, dim {table.dim}",)))
            if InitializerSpec.from_json(table.initializer).given:
                refused.append(
                    f"rows that the code of the new model gives table {table.name!r}, which is "
                    "new: have its layer begin by an initializer such as uniform"
                )
            if f"table {table.name}" in new.elsewhere:
                notes.append(
                    f"table {table.name!r} is new and read by more than kernels of known layout: "
                    "predictions may change"
                )
            continue
        plans.append(_table(old.spec.tables[position], position, table, new, wishes, refused))
        if table.dim > old.spec.tables[position].dim and plans[-1].fill == "zero":
            notes.append(
                f"table {table.name!r} is read by more than kernels of known layout: its new "
                "columns are 0 in all rows, and whether predictions stay the same is for "
                "--verify to show"
            )
    for position in sorted(saved.values()):
        name = old.spec.tables[position].name
        if wishes.dropped(name):
            dropped.append(f"table {name}: dropped")
        else:
            refused.append(
                f"all rows of table {name!r}, which the new model does not have: "
                f"--drop {name} accepts that, --rename {name}=NEW gives it another name"
            )
    return tuple(plans)


def _table(
    saved: pb.TableSpec,
    position: int,
    table: pb.TableSpec,
    new: Described,
    wishes: Wishes,
    refused: list[str],
) -> TablePlan:
    words = ["kept" if saved.dim >= table.dim else "padded"]
    if saved.name != table.name:
        words.append(f"renamed from {saved.name}")
    fill = "zero"
    if table.dim > saved.dim:
        if f"table {table.name}" not in new.elsewhere and table.name in _read(new):
            fill = "initial"
        first = "0" if fill == "zero" else "as in rows never trained"
        words.append(f"dim {saved.dim} -> {table.dim}, new columns {first}")
    elif table.dim < saved.dim:
        lost = f"columns {table.dim} to {saved.dim - 1}"
        words.append(f"dim {saved.dim} -> {table.dim}, {lost} dropped")
        if not wishes.truncate:
            refused.append(f"{lost} of table {saved.name!r}: --truncate accepts that")
    was, kind = value_dtype(saved), value_dtype(table)
    if was != kind:
        words.append(f"values {was} -> {kind}")
        if kind != "float32" and not wishes.truncate:
            refused.append(
                f"digits of the values of table {saved.name!r}, {was} -> {kind}: "
                "--truncate accepts that"
            )
    limit = 0
    if loses_ids(saved, table):
        limit = table.vocabulary
        words.append(f"rows of ids that are not 0 to {limit - 1} dropped")
        if not wishes.truncate:
            refused.append(
                f"rows of table {saved.name!r} whose ids are not 0 to {limit - 1}: "
                "--truncate accepts that"
            )
    before, after = (OptimizerSpec.from_json(each.optimizer) for each in (saved, table))
    slots = slot_sources(before, after, rows=True)
    if before.rule != after.rule:
        words.append(f"optimizer {before.kind} -> {after.kind}, slots {_slot_words(slots)}")
    if saved.admit_after > 1 >= table.admit_after:
        words.append("counted ids get their rows by their next push")
    if (saved.seed, saved.initializer) != (table.seed, table.initializer):
        words.append("rows that come later begin by another seed or initializer")
    return TablePlan(table.name, position, tuple(words), slots, fill, limit)


def _features(old: Described, new: Described, wishes: Wishes) -> list[str]:
    """Notes on new features that may change predictions, in words."""
    if not old.layouts:
        return []
    known = {wishes.renamed(name) for name in _names(old)}
    known |= {wishes.renamed(each.removeprefix("feature ")) for each in old.elsewhere}
    found = sorted(each.removeprefix("feature ") for each in new.elsewhere if "feature " in each)
    return [
        f"feature {name!r} is new and read by more than kernels of known layout: "
        "predictions may change"
        for name in found
        if name not in known
    ]


def _read(model: Described) -> set[str]:
    """The tables that kernels of known layout read."""
    layouts = (each for each in model.layouts.values() if not isinstance(each, str))
    return {label.name for layout in layouts for label in layout if label.kind == "table"}


def _slot_words(slots: Mapping[str, SlotSource]) -> str:
    words = {
        "kept": "kept",
        "mean": "the mean over columns",
        "spread": "the row's in each column",
        "initial": "re-initialised",
    }
    return "; ".join(f"{name} {words[how]}" for name, how in slots.items()) or "none"
