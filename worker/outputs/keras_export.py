"""The forms of an export that Keras and TensorFlow read: model.keras, and a SavedModel.

Owns which of them a model can have, and why not. How a model becomes one without shoal is
keras_model.py's, and what TensorFlow saves the engine's.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import keras

from shoal.errors import UserCodeError, UserError
from shoal.worker.code.keras_internals import taken_features
from shoal.worker.code.module import user_code
from shoal.worker.model.embeddings.keras_embeddings import tables_above
from shoal.worker.model.model import ServedModel
from shoal.worker.outputs.export_tables import ExportedTable
from shoal.worker.outputs.keras_model import own_objects, plain_model, unsaveable

logger = logging.getLogger(__name__)

KERAS, SAVED_MODEL = "keras", "savedmodel"
KERAS_FILE = "model.keras"
FOLDER = "saved_model"


class SavedModels(Protocol):
    """Functions that write and read a SavedModel."""

    def save(
        self, model: ServedModel, tables: Mapping[str, ExportedTable], folder: Path
    ) -> dict[str, dict[str, str]]:
        """Write one; gives, for each table whose vectors it takes, the names of its inputs."""

    def predict_saved(self, folder: Path, model: ServedModel, features: Any) -> Any:
        """The outputs of what `save` wrote without such tables, for the features of a batch."""


class KerasExporter:
    """See the Protocol.

    kinds: those of the export. saved_models: functions of the engine's.
    """

    def __init__(self, model: ServedModel, kinds: Set[str], saved_models: SavedModels) -> None:
        """kinds: of KERAS and SAVED_MODEL, or auto for both. Raises UserError for others."""
        self._model = model
        self.kinds = frozenset({KERAS, SAVED_MODEL} if "auto" in kinds else kinds)
        if unknown := self.kinds - {KERAS, SAVED_MODEL}:
            raise UserError(
                f"--export {min(unknown)}: a model of Keras has no such form; give {KERAS}, "
                f"{SAVED_MODEL}, none, or leave --export out"
            )
        self.saved_models = saved_models

    def write(
        self, tables: Mapping[str, ExportedTable], folder: Path
    ) -> tuple[dict[str, str | None], dict[str, dict[str, str]]]:
        """See the Protocol."""
        kinds = self.kinds
        if KERAS in kinds and (large := [name for name, table in tables.items() if table.external]):
            logger.warning(
                "no model.keras: %s above --export-max-table-mb; the SavedModel takes vectors",
                ", ".join(large),
            )
            kinds = kinds - {KERAS}
        keras_file = signature = None
        missing = self._missing(tables, kinds & {KERAS})
        if SAVED_MODEL in kinds:
            try:
                with _user_layers(f"exporting the model of {self._model.file}"):
                    signature = self.saved_models.save(self._model, tables, folder / FOLDER)
            except (UserError, UserCodeError):
                missing |= self._missing(tables, {SAVED_MODEL})
                if SAVED_MODEL not in missing:
                    raise
                shutil.rmtree(folder / FOLDER, ignore_errors=True)
        try:
            lines = self._lacking(kinds, missing)
        except UserError as error:  # what was found before training is refused there
            raise UserCodeError(str(error), "") from error
        for line in lines:
            logger.warning(line)
        if KERAS in kinds - missing.keys():
            with (
                _user_layers(f"exporting the model of {self._model.file}"),
                plain_model(self._model.model, tables) as plain,
            ):
                plain.save(folder / KERAS_FILE)
            keras_file = KERAS_FILE
        return {"keras": keras_file, "saved_model": None if signature is None else FOLDER}, (
            signature or {}
        )

    def discard(self, folder: Path) -> None:
        """See the Protocol."""
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
        (folder / KERAS_FILE).unlink(missing_ok=True)

    def lacking(self, tables: Mapping[str, ExportedTable]) -> list[str]:
        """See the Protocol."""
        return self._lacking(self.kinds, self._missing(tables, self.kinds))

    def predictions(
        self, folder: Path, written: Mapping[str, str | None], features: Any
    ) -> Iterator[tuple[str, Any]]:
        """See the Protocol."""
        file = self._model.file
        if keras_file := written["keras"]:
            with user_code(f"loading the exported Keras model of {file}"):
                loaded = keras.models.load_model(
                    folder / keras_file, own_objects(self._model.model), safe_mode=False
                )
                found = loaded(taken_features(loaded, features), training=False)
            yield keras_file, found
        if saved_model := written["saved_model"]:
            with user_code(f"loading the exported SavedModel of {file}"):
                found = self.saved_models.predict_saved(folder / saved_model, self._model, features)
            yield saved_model, found

    def _missing(
        self, tables: Mapping[str, ExportedTable], kinds: Set[str]
    ) -> dict[str, UserError | UserCodeError]:
        """The forms that the model cannot have with any rows, each with its error."""
        empty = {name: table.emptied() for name, table in tables.items()}
        missing: dict[str, UserError | UserCodeError] = {}
        # What became a table does so in a copy too, which then needs no memory.
        with (
            tempfile.TemporaryDirectory(prefix="shoal-export-") as folder,
            tables_above(self._model.embedding_threshold),
        ):
            if KERAS in kinds and (why := unsaveable(self._model.model, empty)):
                missing[KERAS] = UserError(why)
            if SAVED_MODEL in kinds:
                try:
                    with _user_layers("saving it"):
                        self.saved_models.save(self._model, empty, Path(folder, FOLDER))
                except (UserError, UserCodeError) as error:
                    missing[SAVED_MODEL] = error
        return missing

    def _lacking(
        self, kinds: Set[str], missing: Mapping[str, UserError | UserCodeError]
    ) -> list[str]:
        """Which forms an export lacks, and why.

        Raises UserError, or UserCodeError with the traceback of the user's code, if it lacks all.
        """
        names = {KERAS: "model.keras", SAVED_MODEL: "SavedModel"}
        why = {kind: getattr(error, "message", str(error)) for kind, error in missing.items()}
        if kinds - missing.keys() or not kinds:
            has = "model.keras" if SAVED_MODEL in missing else "the SavedModel"
            return [
                f"the export has {has}, and no {names[kind]}: {text}" for kind, text in why.items()
            ]
        refusal = (
            f"the model of {self._model.file} cannot be exported"
            + "".join(f". No {names[kind]}: {text}" for kind, text in why.items())
            + ". Mend that, or give --export none: the job then leaves tables, dense values and "
            "checkpoints, and no model"
        )
        for error in missing.values():
            if isinstance(error, UserCodeError):
                raise UserCodeError(refusal, error.traceback) from error
        raise UserError(refusal)


@contextmanager
def _user_layers(what: str) -> Iterator[None]:
    """Run the user's layers as `user_code` does, but raise an OSError, of a disk, unchanged."""
    try:
        with user_code(what):
            yield
    except UserCodeError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise
