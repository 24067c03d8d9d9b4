"""A model that a program gave by value, on its way to the workers' pods: a ConfigMap of its own.

base/modules/by_value.py has the files. A ConfigMap holds a MiB, so a larger model is refused.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.base.modules.by_value import FILES, MODULE
from shoal.config.job import JobConfig
from shoal.errors import UserError

Manifest = dict[str, Any]

FOLDER = "/etc/shoal-model"
"""Where pods have it: `model_zoo` of a job whose model was given by value, and of no other job."""

LARGEST_BYTES = 700_000
"""Of all files together. In base64, and with the rest of the object, that is below a MiB."""


def is_given(config: JobConfig) -> bool:
    """True if the pods of a job have its model from FOLDER."""
    return config.model_zoo == FOLDER


def config_map_name(job_name: str) -> str:
    """Name of the ConfigMap of a job's model."""
    return f"{job_name}-model"


def config_map(job_name: str, folder: Path, labels: Mapping[str, str]) -> Manifest:
    """The ConfigMap of the model in a folder.

    Raises UserError if the files are too large, or cannot be read.
    """
    try:
        files = {
            name: folder.joinpath(name).read_bytes()
            for name in FILES
            if folder.joinpath(name).is_file()
        }
    except OSError as error:
        raise UserError(f"the model in {folder} cannot be read: {error.strerror}") from error
    if MODULE not in files:
        raise UserError(
            f"{folder} has not the model that was given by value, so the job cannot begin; start "
            "it from the program that has the model"
        )
    if (size := sum(map(len, files.values()))) > LARGEST_BYTES:
        raise UserError(
            f"model: given by value it has {size:,} bytes, and a cluster takes {LARGEST_BYTES:,}. "
            "Give a function that makes the model, so that its weights stay out, keep large "
            "objects out of your functions, or write a module and build an image: "
            "model_def and shoal zoo"
        )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": config_map_name(job_name), "labels": dict(labels)},
        "immutable": True,
        "binaryData": {name: base64.b64encode(data).decode() for name, data in files.items()},
    }


def mounted(job_name: str) -> tuple[Manifest, Manifest]:
    """(volume, mount) of the model."""
    volume = {"name": "shoal-model", "configMap": {"name": config_map_name(job_name)}}
    return volume, {"name": "shoal-model", "mountPath": FOLDER, "readOnly": True}


def write(data: Mapping[str, str], folder: Path) -> None:
    """Write the files of a ConfigMap's `binaryData` to a folder, which may be there.

    Raises UserError if it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in set(FILES) & data.keys():
            folder.joinpath(name).write_bytes(base64.b64decode(data[name]))
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from error
