"""The job's configuration: one frozen object, the same in every process.

The command line and the Python API build a `JobConfig`; it is written to the job
folder as JSON and each process of the job reads it from there. No process parses
another's command line.

Owns what becomes of the fields as a whole: defaults that follow from others, loading and
saving, and which of them are flags of which command. The fields are options.py's and
kubernetes.py's, what they may hold checks.py's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.base.disk.wholefile import reading
from shoal.config import checks as config_checks
from shoal.config.groups import data_format
from shoal.config.groups.kubernetes import PATHS
from shoal.config.options import GROUPS, JobOptions
from shoal.errors import UserError, hide

START_SECONDS = 300.0
"""Least of JobConfig.start_seconds: TensorFlow takes a minute or two to come from a cold disk."""

TOKEN_LETTERS = 16
"""Of a job's token that is drawn here."""

EXPORT_FLAGS = (
    *("output", "overwrite", "export", "export_max_table_mb", "export_dtype"),
    *("model_def", "model_zoo", "model_params", "engine", "training_data", "embedding_threshold"),
    *data_format.FIELDS,
)
"""Fields that `shoal export` has flags for; the others are those of the job."""

CHECK_FLAGS = (
    "model_def",
    "model_zoo",
    "model_params",
    "engine",
    "training_data",
    "validation_data",
    "batch_size",
    "servers",
    "embedding_threshold",
    "table",
    "event_time",
    "export_dtype",
    "seed",
    *data_format.FIELDS,
)
"""The fields that are flags of `shoal check`, which starts no job."""

PLAN_FLAGS = (
    *(name for name in CHECK_FLAGS if name not in ("servers", "validation_data")),
    *("epochs", "accumulate", "num_minibatches_per_task"),
    *("durability", "log_mb"),
)
"""The fields that are flags of `shoal plan`, which starts no job and tells --servers."""

RESUMABLE = (
    "engine",
    "workers",
    "servers",
    "autoscale",
    "relaunch_limit",
    "max_bad_records",
)
"""Fields that `shoal train --resume` may change."""

RESUMABLE_IMAGES = ("image", "server_image")
"""Further ones of a job on Kubernetes, whose modules are in the image."""


@dataclass(frozen=True, kw_only=True)
class JobConfig(JobOptions):
    """The configuration of one job. `resolved()` makes paths absolute and decides on --durability.

    token: tells the processes of this job from those of any other; set by `resolved()`.
    """

    def __post_init__(self) -> None:
        """Raises UserError naming the flag whose value cannot be used."""
        config_checks.check(self)

    def resolved(self) -> JobConfig:
        """The same with a job name, a job folder and absolute paths. Raises UserError."""
        model_file = self.model_def.replace("/", ".").split(".")[-2].replace("_", "-")
        # Evaluating a model must not collide with the job that trained it.
        suffix = "" if self.command == "train" else f"-{self.command}"
        name = self.job_name or model_file + suffix
        if self.image:
            name = name.replace("_", "-")  # which no object of Kubernetes may have in its name
        changes = self._resolved_in_pods(name) if self.image else self._resolved_here(name)
        token = self.token or secrets.token_hex(TOKEN_LETTERS // 2)
        config = dataclasses.replace(self, job_name=name, token=token, **changes)
        if self.command != "train" or self.durability == "checkpoint":
            kept = "checkpoint"
        elif (why := config.why_no_log) and self.keeps_log:
            raise UserError(f"--durability={self.durability}: {why}")
        elif self.keeps_log:
            kept = self.durability
        else:
            kept = "checkpoint" if why else "log"
        return dataclasses.replace(config, durability=kept)

    def _resolved_in_pods(self, name: str) -> dict[str, Any]:
        """Paths, and what follows from them, of a job on Kubernetes. Raises UserError."""
        given = {key: getattr(self, key) for key in ("job_dir", "checkpoint_dir", *PATHS)}
        changes = self.paths_in_pods(name, given)
        if not changes["checkpoint_dir"]:
            if self.checkpoint_steps:
                raise UserError(
                    "--checkpoint-steps: where no --volume holds --job-dir, checkpoints "
                    "need a --checkpoint-dir that all pods share"
                )
            changes["checkpoint_seconds"] = 0.0
        return changes

    def _resolved_here(self, name: str) -> dict[str, Any]:
        """Paths of a job on this machine."""
        job_dir = os.path.abspath(self.job_dir or os.path.join("shoal-jobs", name))
        checkpoints = self.checkpoint_dir or os.path.join(job_dir, "checkpoints")
        given = {key: getattr(self, key) for key in PATHS} | {"checkpoint_dir": checkpoints}
        # URLs and the like are left to the readers.
        paths = {key: _absolute(at) for key, at in given.items() if at and "://" not in at}
        return {"job_dir": job_dir, "checkpoint_dir": checkpoints} | paths

    @property
    def begins_with(self) -> str:
        """The path or URL of what the model begins with; empty for a new model."""
        return self.continue_from or self.restore_from

    @property
    def first_rows(self) -> str:
        """The path or URL of the folder of rows that the user's model brings.

        Servers begin with them. Empty where pods share no folder, and where the job begins with
        another's model.
        """
        if self.begins_with or not self.checkpoint_dir:
            return ""
        return f"{self.checkpoint_dir.rstrip('/')}/first-rows-{self.job_id}"

    @property
    def start_seconds(self) -> float:
        """Seconds that a running process may take to register, or a server to progress with it."""
        return max(START_SECONDS, self.start_timeout)

    @property
    def leaves_out_trained(self) -> bool:
        """True if files that earlier jobs trained on are left out; possibly no file remains."""
        return self.only_new and bool(self.continue_from)

    @property
    def evaluates_first(self) -> bool:
        """True if there is an earlier model, which is evaluated before it is trained on."""
        return self.evaluate_first and bool(self.begins_with)

    @property
    def job_id(self) -> str:
        """Names this job, and no other of the same name; unlike the token it is no secret."""
        return job_id_of(self.token)

    def to_json(self) -> str:
        """The configuration as a JSON object, one key per field."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> JobConfig:
        """Raises UserError on unknown keys or unusable values."""
        values = json.loads(text)
        unknown = set(values) - {f.name for f in dataclasses.fields(cls)}
        if unknown:
            raise UserError(f"unknown configuration keys: {', '.join(sorted(unknown))}")
        return cls(**values)

    @classmethod
    def load(cls, path: str | Path) -> JobConfig:
        """Read a job.json.

        Raises UserError if the file is missing or not a configuration.
        """
        try:
            with reading(Path(path)) as file:
                config = cls.from_json(file.read().decode())
        except FileNotFoundError as error:
            raise UserError(f"--config: there is no file {path}") from error
        except (OSError, UserError) as error:
            raise UserError(f"--config: {path}: {error}") from error
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"--config: {path} is not a job configuration: {error}") from error
        if len(config.token) >= TOKEN_LETTERS:  # in no log line of this process
            hide([config.token])
        return config


def job_id_of(token: str) -> str:
    """The name of the job with this token."""
    return hashlib.sha256(f"job {token}".encode()).hexdigest()[:16]


def option_fields() -> list[dataclasses.Field[Any]]:
    """The fields that have a flag, group by group."""
    return [field for group in GROUPS for field in group.fields]


def fields_of(command: str) -> list[dataclasses.Field[Any]]:
    """The fields that are flags of a command, group by group.

    command: train, evaluate, predict, check or plan.
    """
    chosen = {"check": CHECK_FLAGS, "plan": PLAN_FLAGS}
    if command in chosen:
        return [field for field in option_fields() if field.name in chosen[command]]
    return [field for field in option_fields() if command in field.metadata["commands"]]


def _absolute(path: str) -> str:
    """A path from the root; that of a list of files with the @ before it."""
    listed = path.startswith("@")
    return "@" * listed + os.path.abspath(path[listed:])
