"""The terms of a migration: two models with the layouts of their kernels, and the wishes.

Plain data, and the differences of two tables. migration_plan.py draws the conclusions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shoal.proto import shoal_pb2 as pb


def value_dtype(table: pb.TableSpec) -> str:
    """The dtype of a table's rows, by name."""
    return table.value_dtype or "float32"


def loses_ids(saved: pb.TableSpec, table: pb.TableSpec) -> bool:
    """True if a table that was saved may have ids that the one to come does not take."""
    return bool(table.vocabulary) and not 0 < saved.vocabulary <= table.vocabulary


class Label(NamedTuple):
    """An input of a kernel: which element of which output of the model's sources it is.

    kind: "table", "feature" or "computed", by any other operation. name: of the table, the
    feature or the operation. call: tells the calls of one table apart. position: of the row
    among those of one call and one record, or of the element. column: of the row.
    """

    kind: str
    name: str
    call: str
    position: int
    column: int


Layout = tuple[Label, ...] | str
"""The inputs of a kernel, one a row of it; or why they are not known."""


@dataclass(frozen=True)
class Described:
    """A model, and how it reads its tables.

    layouts: of the kernels of dense layers, by variable. elsewhere: tables and features that are
    not read by kernels of known layout alone, as "table NAME" or "feature NAME". otherwise: why
    the layout of another variable is not known.
    """

    spec: pb.ModelSpec
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    elsewhere: Collection[str] = ()
    otherwise: str = "it is not the kernel of a dense layer"


@dataclass(frozen=True)
class Wishes:
    """The user's wishes for the migration.

    rename: old name -> new name, of tables, features, variables or layers. drop: names that may be
    lost. truncate: columns, ids and digits that no longer fit may be lost. reinitialise:
    variables that begin anew. kernel_rows: variable -> the new row of each old row of it.
    """

    rename: Mapping[str, str] = field(default_factory=dict)
    drop: frozenset[str] = frozenset()
    truncate: bool = False
    reinitialise: frozenset[str] = frozenset()
    kernel_rows: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def renamed(self, name: str) -> str:
        """The new name of a table, a variable, a feature or an operation of a layer."""
        if name in self.rename:
            return self.rename[name]
        for old, new in self.rename.items():
            if name.startswith(f"{old}/"):
                return new + name[len(old) :]
        return name

    def dropped(self, name: str) -> bool:
        """True if this name, or the layer that it is in, may be lost."""
        return any(name == each or name.startswith(f"{each}/") for each in self.drop)
