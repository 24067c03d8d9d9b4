"""SavedModels of models on JAX: a process of TensorFlow builds the model again, and saves it.

Names of tables and variables are alike on both, and ids there are strings and 64-bit integers, as
those who are served have them, not the numbers that a step of JAX takes.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.base.modules.engines import VARIABLE
from shoal.errors import EXIT_USER_ERROR, UserCodeError, UserError
from shoal.worker.model.model import ServedModel
from shoal.worker.outputs.export_tables import ExportedTable


def save(
    model: ServedModel, tables: Mapping[str, ExportedTable], folder: Path
) -> dict[str, dict[str, str]]:
    """See SavedModels.

    Raises UserError if TensorFlow is not installed, cannot have the model, or crashes;
    UserCodeError if the module raises there; OSError for a disk that fails.
    """
    variables = [*model.trainable.variables, *model.state.variables]
    dense = {each.path: np.asarray(each, np.float32) for each in variables}
    config = replace(model.config, command="check", engine="tensorflow", restore_from="", image="")
    # Beside the export, where there is room for it.
    with tempfile.TemporaryDirectory(prefix="shoal-", dir=folder.parent) as work:
        path, given = Path(work, "job.json"), Path(work, "given")
        path.write_text(config.to_json())
        with given.open("wb") as file:
            pickle.dump((dict(tables), dense), file, pickle.HIGHEST_PROTOCOL)
        done = _run("--config", path, "--given", given, "--folder", folder)
    if done.returncode == 0:
        names: dict[str, dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
        return names
    _, told, text = f"\n{done.stderr}".rpartition("\nError: ")
    if not told:
        raise UserError(
            f"the process of TensorFlow that makes it ended with code {done.returncode}: "
            f"{done.stderr[-1000:]}"
        )
    text, _, lines = text.partition("\n")
    if done.returncode != EXIT_USER_ERROR:
        raise OSError(f"the process of TensorFlow that makes the SavedModel: {text}")
    message = f"a process of TensorFlow makes it, which says: {text}"
    # With lines, the user's code raised: they name it as a traceback does.
    raise UserCodeError(message, lines) if lines.strip() else UserError(message)


def _run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the other process to its end, which comes with that of this one at the latest."""
    read, held = os.pipe()
    try:
        return subprocess.run(
            [sys.executable, "-m", "shoal.worker.inspect.saved_model", *arguments],
            stdin=read,
            env={name: value for name, value in os.environ.items() if name != VARIABLE},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        os.close(read)
        os.close(held)


def predict_saved(folder: Path, model: ServedModel, features: Any) -> Any:
    """Nothing calls it: features are those of JAX."""
    raise AssertionError(folder, model, features)
