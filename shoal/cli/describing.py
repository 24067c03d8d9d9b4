"""Models described, and predictions of checkpoints, by processes that have TensorFlow.

Owns starting these processes, which are worker/inspect/describe_saved.py's, and reading their
files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.checkpoints.folders import Checkpoint
from shoal.checkpoints.formats.schema import model_spec
from shoal.checkpoints.migration_terms import Described, Label, Layout
from shoal.client.run.model_process import model_process, run
from shoal.config.job import JobConfig
from shoal.errors import UserError


@dataclass(frozen=True)
class Description:
    """A model, and the initial values of its dense variables by name."""

    model: Described
    initial: Mapping[str, npt.NDArray[np.float32]]


def describe(config: JobConfig, which: str) -> Description:
    """The model of `config`. which: it is, for messages. Raises UserError if it cannot be built."""
    with _ran(config, which) as folder:
        content = json.loads((folder / "model.json").read_text())
        spec = model_spec(content["spec"])
        layouts: dict[str, Layout] = {
            name: layout if isinstance(layout, str) else tuple(Label(*each) for each in layout)
            for name, layout in content["layouts"].items()
        }
        names = [each.name for each in (*spec.trainable, *spec.non_trainable)]
        with np.load(folder / "initial.npz") as values:
            initial = {name: values[f"arr_{place}"] for place, name in enumerate(names)}
    return Description(Described(spec, layouts, frozenset(content["elsewhere"])), initial)


def predictions(
    config: JobConfig, which: str, checkpoint: Checkpoint, root: str, records: int
) -> Any:
    """The predictions of a model with a checkpoint: float64 [records, outputs].

    records: number of the first records of --training-data to use. Raises UserError.
    """
    arguments = ["--root", root, "--number", str(checkpoint.number), "--records", str(records)]
    with _ran(config, which, *arguments) as folder:
        return np.load(folder / "predictions.npy")


@contextmanager
def _ran(config: JobConfig, which: str, *arguments: str) -> Iterator[Path]:
    """The folder of the files that the process has written."""
    with model_process("describe_saved", config) as (command, folder):
        command += ["--output", str(folder), *arguments]
        done = run(command, captured=True)
        if done.returncode:
            text = (
                done.stderr.strip().removeprefix("Error: ")
                or f"its process ended with code {done.returncode}"
            )
            raise UserError(f"{which} ({config.model_def}): {text}")
        yield folder
