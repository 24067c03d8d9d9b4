"""The content of an export's manifest; schema.py has those of checkpoints, and checks them all."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from shoal.checkpoints.formats.schema import (
    Count,
    File,
    FileName,
    SchemaError,
    Text,
    all_different,
    checked,
    exact,
    parsed,
)
from shoal.native.optimizers import OptimizerSpec
from shoal.proto.values.model_bounds import MAX_DIM

EXPORT_FORMAT = "shoal-export-3"


@exact
class ExportTable(TypedDict):
    """A table of an export. default: the row of ids that were never trained.

    dtype: of the values in its file; int8 ones have a column of scales.
    """

    name: Text
    file: FileName
    dim: Annotated[int, Field(gt=0, le=MAX_DIM)]
    rows: Count
    default: list[float]
    dtype: Literal["float32", "int8"]
    in_models: bool
    signature: NotRequired[dict[str, str]]


@exact
class ExportManifest(TypedDict):
    """An export.

    job_id: of the job that may write it again. keras, saved_model: where they are, None if
    they are not. program, state_dict: likewise, of a torch.nn.Module. files: all of it. partial:
    why the models could not be written, where tables and dense values were.
    """

    format: str
    partial: NotRequired[str]
    job_name: str
    job_id: str
    version: Count
    keras: FileName | None
    saved_model: FileName | None
    program: NotRequired[FileName | None]
    state_dict: NotRequired[FileName | None]
    dense: FileName
    optimizer: str
    tables: list[ExportTable]
    files: list[File]


def checked_export(content: object) -> ExportManifest:
    """An export's manifest. Raises SchemaError."""
    manifest = checked(content, ExportManifest)
    files = [file["name"] for file in manifest["files"]]
    all_different("files", "name", files)
    all_different("tables", "name", [table["name"] for table in manifest["tables"]])
    all_different("tables", "file", [table["file"] for table in manifest["tables"]])
    for position, table in enumerate(manifest["tables"]):
        if len(table["default"]) != table["dim"]:
            raise SchemaError(f"tables[{position}].default: not of dim {table['dim']}")
        if table["file"] not in files:
            raise SchemaError(f"tables[{position}].file: {table['file']} is not among the files")
    for field in ("dense", "keras", "program", "state_dict"):
        name = manifest.get(field)
        if name is not None and name not in files:
            raise SchemaError(f"{field}: {name} is not among the files")
    parsed("optimizer", OptimizerSpec.from_json, manifest["optimizer"])
    return manifest
