"""The plan for each dense variable in a migration, by the inputs of the kernels.

Pure decisions, as migration_plan.py's, which decides on all else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shoal.checkpoints.migration_terms import Described, Label, Wishes
from shoal.proto import shoal_pb2 as pb


@dataclass(frozen=True)
class VariablePlan:
    """The origin of a new dense variable.

    source: its name in the checkpoint; None: it has its initial values. rows: for each row of
    the new variable the old one, or -1 for zeros; None: all as they are.
    """

    name: str
    source: str | None
    words: tuple[str, ...]
    rows: tuple[int, ...] | None = None


def plan_variables(
    old: Described,
    new: Described,
    wishes: Wishes,
    refused: list[str],
    dropped: list[str],
    notes: list[str],
) -> tuple[VariablePlan, ...]:
    """The plan for each variable of the new model.

    refused, dropped, notes: are added to, as Plan has them. Raises ValueError for --kernel-rows
    that do not fit.
    """
    saved = {wishes.renamed(each.name): each for each in _all_variables(old.spec)}
    plans = []
    for variable in _all_variables(new.spec):
        source = saved.pop(variable.name, None)
        if source is None:
            plans.append(VariablePlan(variable.name, None, ("new",)))
            continue
        plans.append(_variable(source, variable, old, new, wishes, refused))
    for each in saved.values():
        if wishes.dropped(each.name):
            dropped.append(f"variable {each.name}: dropped")
        else:
            refused.append(
                f"variable {each.name!r}, which the new model does not have: "
                f"--drop {each.name} accepts that, --rename {each.name}=NEW gives it another name"
            )
    if anew := [each.name for each in plans if each.source is None]:
        notes.append(f"predictions may change by variables with initial values: {', '.join(anew)}")
    return tuple(plans)


def _all_variables(spec: pb.ModelSpec) -> list[pb.VariableSpec]:
    return [*spec.trainable, *spec.non_trainable]


def _variable(
    source: pb.VariableSpec,
    variable: pb.VariableSpec,
    old: Described,
    new: Described,
    wishes: Wishes,
    refused: list[str],
) -> VariablePlan:
    name = variable.name
    if name in wishes.reinitialise:
        return VariablePlan(name, None, ("re-initialised",))
    words = [] if source.name == name else [f"renamed from {source.name}"]
    before, after = tuple(source.shape), tuple(variable.shape)
    if before[1:] != after[1:] or (before != after and not after):
        refused.append(
            f"variable {name!r}: its shape is {before} in the checkpoint and {after} in the new "
            f"model: --reinitialise {name} gives it initial values"
        )
        return VariablePlan(name, source.name, ("refused", *words))
    rows, lost, unknown = _rows(source, variable, old, new, wishes)
    if unknown:
        refused.append(
            f"variable {name!r}: its shape is {before} in the checkpoint and {after} in the new "
            f"model, and its inputs are not known: {unknown}. --kernel-rows {name}=FROM:TO,... "
            "says which of its new rows are the old ones, in their order; --reinitialise "
            f"{name} gives it initial values"
        )
        return VariablePlan(name, source.name, ("refused", *words))
    for words_of, flag in _losses(lost, old, new, wishes):
        refused.append(f"rows of variable {name!r} that read {words_of}: {flag} accepts that")
    if rows is None or rows == tuple(range(before[0] if before else 0)):
        return VariablePlan(name, source.name, ("kept", *words))
    zero = rows.count(-1)
    kept = len(rows) - zero
    parts = [f"{kept} of {before[0]} rows kept", *([f"{zero} new rows 0"] if zero else [])]
    if lost:
        parts.append(f"{len(lost)} rows dropped")
    return VariablePlan(name, source.name, ("padded" if zero else "kept", *words, *parts), rows)


def _rows(
    source: pb.VariableSpec,
    variable: pb.VariableSpec,
    old: Described,
    new: Described,
    wishes: Wishes,
) -> tuple[tuple[int, ...] | None, list[Label], str]:
    """Which old row each new one is, the inputs whose rows are lost, and why that is unknown."""
    name = variable.name
    same = tuple(source.shape) == tuple(variable.shape)
    if name in wishes.kernel_rows:
        return _given(wishes.kernel_rows[name], source, variable), [], ""
    theirs = old.layouts.get(source.name, old.otherwise)
    ours = new.layouts.get(name, new.otherwise)
    for layout, which in ((theirs, "in the checkpoint's model"), (ours, "in the new model")):
        if isinstance(layout, str):
            # By name and shape, as --restore-from has it.
            return None, [], "" if same else f"{which}, {layout}"
    assert not isinstance(theirs, str)
    assert not isinstance(ours, str)
    renamed = [_renamed(label, wishes) for label in theirs]
    if uncertain := _other_width(renamed, ours):
        return None, [], "" if same and len(set(_sources(ours))) == 1 else uncertain
    rows, lost = row_map(renamed, ours)
    return rows, lost, ""


def row_map(old: Sequence[Label], new: Sequence[Label]) -> tuple[tuple[int, ...], list[Label]]:
    """For each row of a new kernel the old one of the same input, or -1; inputs without a new row.

    An input that occurs twice is matched in the order of its rows.
    """
    places: dict[Label, list[int]] = {}
    for place, label in enumerate(old):
        places.setdefault(label, []).append(place)
    rows = tuple(places[label].pop(0) if places.get(label) else -1 for label in new)
    return rows, [old[place] for place in sorted(p for left in places.values() for p in left)]


def _renamed(label: Label, wishes: Wishes) -> Label:
    call = ",".join(wishes.renamed(each) for each in label.call.split(","))
    return label._replace(name=wishes.renamed(label.name), call=call)


def _sources(layout: Iterable[Label]) -> list[tuple[str, str]]:
    return [(label.kind, label.name) for label in layout]


def _other_width(old: Sequence[Label], new: Sequence[Label]) -> str:
    """Which computed input has another width than it had, or is not there any more, in words."""
    before, after = Counter(_sources(old)), Counter(_sources(new))
    for (kind, name), width in before.items():
        if kind == "computed" and after[kind, name] != width:
            return (
                f"the operation {name} gives {width} of them in the checkpoint's model and "
                f"{after[kind, name]} in the new one"
            )
    return ""


def _given(
    targets: Sequence[int], source: pb.VariableSpec, variable: pb.VariableSpec
) -> tuple[int, ...]:
    size, count = variable.shape[0], source.shape[0]
    if len(targets) != count or len(set(targets)) != count or max(targets, default=-1) >= size:
        raise ValueError(
            f"--kernel-rows {variable.name}: names {len(set(targets))} rows up to "
            f"{max(targets, default=-1)}; there are {count} old rows and {size} new ones"
        )
    rows = [-1] * size
    for place, target in enumerate(targets):
        rows[target] = place
    return tuple(rows)


def _losses(
    lost: Sequence[Label], old: Described, new: Described, wishes: Wishes
) -> list[tuple[str, str]]:
    """The origins of the lost inputs, and the flag for each; accepted ones are left out."""
    dims = {table.name: table.dim for table in new.spec.tables}
    back = {wishes.renamed(table.name): table.name for table in old.spec.tables}
    found = {}
    for label in lost:
        name = back.get(label.name, label.name)
        if label.kind == "table" and label.column >= dims.get(label.name, math.inf):
            if not wishes.truncate:
                found[f"columns of table {name!r} that are cut off"] = "--truncate"
        elif not wishes.dropped(name):
            found[f"{label.kind} {name!r}"] = f"--drop {name}"
    return list(found.items())
