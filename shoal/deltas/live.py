"""A live model: its rows here, and its SavedModel, which is loaded beside the one before.

Owns which rows another model goes on with. Who answers with it is following.py's.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.checkpoints.formats import manifests
from shoal.deltas.delta import Delta
from shoal.deltas.errors import ForeignDeltaError, told
from shoal.deltas.rows import Rows
from shoal.deltas.schema import LiveModel, LiveModelManifest
from shoal.errors import UserError
from shoal.files.storage import Storage

if TYPE_CHECKING:
    from shoal.deltas.predicting import Predictor

COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class Live:
    """A model that answers.

    of: its folder, as deltas name it. lacks: why it cannot predict, if it cannot. number, created:
    of the newest delta that it has; 0 before the first.
    """

    of: LiveModel
    model: LiveModelManifest
    rows: Rows
    predictor: Predictor | None
    lacks: str
    number: int = 0
    created: float = -math.inf


class Models:
    """The models of a folder of deltas, loaded as `follow` is asked to."""

    def __init__(self, root: Storage, *, predict: bool, only: Collection[str]) -> None:
        """predict: they are to predict. only: the tables to keep; none: all."""
        self._root, self._predict, self._only = root, predict, tuple(only)

    def loaded(self, delta: Delta, rows: Rows | None) -> Live:
        """The model of a delta, before that is applied.

        rows: those of the model before, which this one goes on with if its tables are the same.
        Raises DeltaError and StorageError, UserError for a table to keep that it does not have.
        """
        model = delta.model
        if rows is None or not rows.fits(model, delta.spec):
            if not delta.base:
                raise ForeignDeltaError(
                    f"{self._root.location}: delta {delta.number} has another model, and is no base"
                )
            rows = Rows(model, delta.spec, self._only)
        lacks, predictor = self._lacks(model), None
        if not lacks:
            from shoal.deltas.predicting import Predictor  # late: others need no TensorFlow

            try:
                with self._saved_model(delta) as path:
                    predictor = Predictor(path, model, rows)
            except UserError as error:  # TensorFlow is missing
                lacks = f"as {error}"
        return Live(delta.manifest["model"], model, rows, predictor, lacks)

    def _lacks(self, model: LiveModelManifest) -> str:
        if model["saved_model"] is None:
            return f"as it has no SavedModel of TensorFlow: {model.get('lacks', model['engine'])}"
        if self._only:
            return f"as only these tables are kept: {', '.join(self._only)}"
        return "" if self._predict else "as it was opened without predictions"

    @contextmanager
    def _saved_model(self, delta: Delta) -> Iterator[Path]:
        """The folder of a delta's SavedModel on this machine, whose files are checked."""
        name = delta.model["saved_model"]
        assert name is not None
        folder = self._root.child(delta.manifest["model"]["folder"])
        with tempfile.TemporaryDirectory(prefix="shoal-live-model-") as made:
            with told():
                for file in delta.model["files"]:
                    manifests.check(folder, file)
                local = folder.local_path(name)
                for file in delta.model["files"] if local is None else ():
                    target = Path(made, file["name"])
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with folder.read(file["name"]) as source, target.open("wb") as copy:
                        shutil.copyfileobj(source, copy, COPY_BYTES)
            yield local or Path(made, name)
