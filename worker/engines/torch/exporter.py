"""The forms of an export that PyTorch reads: model.pt2 and state_dict.pt.

Both are of the user's module with its tables in itself (shoal/torch/exported.py). model.pt2 is what
torch.export makes of it, for any number of records, and needs no code of the user's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import torch

from shoal.base.nested import leaves, mapped
from shoal.errors import UserError
from shoal.torch.exported import PROGRAM, STATE_DICT, plain
from shoal.worker.code.module import summary, user_code
from shoal.worker.engines.torch.ids import sample_of
from shoal.worker.engines.torch.plain_embeddings import ServedWeight
from shoal.worker.input.spec import ArraySpec
from shoal.worker.model.model import ServedModel
from shoal.worker.outputs.export_tables import ExportedTable

logger = logging.getLogger(__name__)

KINDS = {"pt2": PROGRAM, "state_dict": STATE_DICT}
"""The names of --export -> the files."""


class TorchExporter:
    """See the Protocol. kinds: those of the export, of KINDS."""

    def __init__(self, model: ServedModel, kinds: Set[str]) -> None:
        """kinds: of KINDS, or auto for all. Raises UserError for others."""
        self._model = model
        self.kinds = frozenset(KINDS) if "auto" in kinds else frozenset(kinds)
        if unknown := self.kinds - KINDS.keys():
            raise UserError(
                f"--export {min(unknown)}: a torch.nn.Module has no such form; give "
                f"{', '.join(KINDS)}, none, or leave --export out"
            )

    def write(
        self, tables: Mapping[str, ExportedTable], folder: Path
    ) -> tuple[dict[str, str | None], dict[str, dict[str, str]]]:
        """See the Protocol."""
        large = [name for name, table in tables.items() if table.external]
        written: dict[str, str | None] = {"program": None, "state_dict": None}
        if large and self.kinds:
            logger.warning(
                "no %s: the rows of %s are above --export-max-table-mb, and in their Parquet files",
                " and no ".join(KINDS[each] for each in sorted(self.kinds)),
                ", ".join(large),
            )
            return written, {}
        if not self.kinds:
            return written, {}
        with user_code(f"exporting the model of {self._model.file}"):
            made = self._plain(tables)
        if "state_dict" in self.kinds:
            torch.save(made.state_dict(), folder / STATE_DICT)
            written["state_dict"] = STATE_DICT
        if "pt2" in self.kinds:
            program, why = self._program(made)
            if program is None:
                logger.warning(self._told(why))
            else:
                torch.export.save(program, folder / PROGRAM)
                written["program"] = PROGRAM
        return written, {}

    def discard(self, folder: Path) -> None:
        """See the Protocol."""
        for name in KINDS.values():
            (folder / name).unlink(missing_ok=True)

    def lacking(self, tables: Mapping[str, ExportedTable]) -> list[str]:
        """See the Protocol."""
        if not self.kinds:
            return []
        with user_code(f"copying the model of {self._model.file} for its export"):
            made = self._plain({name: each.emptied() for name, each in tables.items()})
        if "pt2" not in self.kinds:
            return []
        program, why = self._program(made)
        if program is not None:
            return []
        if self.kinds == {"pt2"}:
            raise UserError(
                f"the model of {self._model.file} cannot be exported: {self._told(why)}. Mend "
                "that, or give --export state_dict, which any module has"
            )
        return [self._told(why)]

    def predictions(
        self, folder: Path, written: Mapping[str, str | None], features: Any
    ) -> Iterator[tuple[str, Any]]:
        """See the Protocol."""
        name = written["program"]
        if name is None:
            return
        with user_code(f"loading the exported program of {self._model.file}"):
            loaded = torch.export.load(folder / name).module()
            with torch.no_grad():
                found = loaded(features)
        yield name, found

    def _told(self, why: str) -> str:
        return (
            f"the export has no {PROGRAM}, which torch.export does not make of the model ({why}); "
            f"shoal.torch.load(folder, model) reads its {STATE_DICT}"
        )

    def _plain(self, tables: Mapping[str, ExportedTable]) -> torch.nn.Module:
        """A copy of the module with the rows in itself."""
        served = self._model.tables

        def rows(name: str) -> tuple[torch.Tensor, torch.Tensor]:
            table = tables[name]
            default = torch.from_numpy(table.default.copy())[None]
            values = torch.from_numpy(table.values().copy()) if table.ids.size else default
            weight = torch.cat([default, values]).to(served[name].layer.dtype)
            return torch.from_numpy(table.indexed_ids.copy()), weight

        made = plain(self._model.model, rows)
        for each in (*made.parameters(), *made.buffers()):
            each.data = each.data.clone()  # those of the model are views of one vector
        for module in made.modules():
            for name, each in list(vars(module).items()):
                if isinstance(each, ServedWeight):
                    object.__delattr__(module, name)
                    module.register_parameter(name, _whole(each, tables[each.served.name]))
        return made

    def _program(self, made: torch.nn.Module) -> tuple[Any, str]:
        """The exported program of a module; None, with the reason, if there is none."""
        spec = self._model.features_spec
        records = max([3, *(size + 1 for each in leaves(spec) for size in each.shape if size)])
        features = mapped(lambda each: sample_of(each, records), spec)
        try:
            program = torch.export.export(
                made, (features,), dynamic_shapes=(mapped(_free_sizes, spec),)
            )
        except Exception as error:  # of any part of PyTorch, about the user's code
            return None, summary(error)
        return program, ""


def _free_sizes(spec: ArraySpec) -> dict[int, Any]:
    """The axes of any size: that of records, and those whose size varies."""
    return {axis: torch.export.Dim.DYNAMIC for axis, size in enumerate(spec.shape) if size is None}


def _whole(weight: ServedWeight, table: ExportedTable) -> torch.nn.Parameter:
    """The weight of a plain embedding. Without rows, one that takes no memory."""
    served = weight.served
    if table.ids.size:
        values = torch.from_numpy(table.values().copy()).to(served.dtype)
    else:
        values = torch.zeros((1, served.dim), dtype=served.dtype).expand(served.vocabulary, -1)
    return torch.nn.Parameter(values, requires_grad=False)
