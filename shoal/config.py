"""The job's configuration: one frozen object, the same in every process.

The command line and the Python API build a `JobConfig`; it is written to the job
folder as JSON and each process of the job reads it from there. No process parses
another's command line. Imports only shoal.errors and shoal.kubernetes_options.

Each field's metadata holds its help text, from which the command line makes the
flag: a field and its flag cannot drift apart.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.errors import UserError
from shoal.kubernetes_options import PATHS, KubernetesOptions

COMMANDS = ("train", "evaluate", "predict")
CHECK_FLAGS = (
    "model_def",
    "model_zoo",
    "training_data",
    "minibatch_size",
    "num_ps",
    "embedding_threshold",
    "seed",
)
"""The fields that are flags of `shoal check`, which starts no job."""

WIRE_DTYPES = ("float32", "bfloat16", "float16")
SYNC_LATE = ("drop", "fold")
DURABILITIES = ("checkpoint", "log")
NONFINITE = ("fail", "skip", "allow")
LOG_LEVELS = ("debug", "info", "warning", "error")

MODULE_FUNCTIONS = ("loss", "optimizer", "feed")
"""What the user's module must define beside the model."""


def missing_functions(defined: Container[str]) -> list[str]:
    """Those of `MODULE_FUNCTIONS` that are not `defined`; feed_batch serves in place of feed."""
    return [
        name
        for name in MODULE_FUNCTIONS
        if name not in defined and not (name == "feed" and "feed_batch" in defined)
    ]


def _option(help_text: str, default: Any = dataclasses.MISSING, commands: str = "") -> Any:
    """A field with its help text; `commands` limits the flag to some commands."""
    metadata = {"help": help_text, "commands": tuple(commands.split()) or COMMANDS}
    if default is dataclasses.MISSING:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class JobConfig(KubernetesOptions):
    """What one job is to do. Paths are absolute once `resolved()` was called.

    token: tells the processes of this job from those of any other; set by `resolved()`.
    """

    model_def: str = _option(
        "The user's module and model: file.function or file.ClassName, where file is a "
        "path below --model-zoo without .py, with dots or slashes between folders."
    )
    command: str = field(default="train")
    token: str = field(default="")
    model_zoo: str = _option("Folder that --model-def is looked up in.", ".")
    job_name: str = _option(
        "Name of the job: letters, digits and dashes. Default: the model's file, followed by "
        "-evaluate or -predict for those commands.",
        "",
    )
    job_dir: str = _option(
        "Folder for the job's configuration, logs and result. Default: shoal-jobs/JOB_NAME.", ""
    )
    training_data: str = _option(
        "File, folder or glob pattern of training records.", "", commands="train"
    )
    validation_data: str = _option(
        "File, folder or glob pattern of validation records.", "", commands="train evaluate"
    )
    prediction_data: str = _option(
        "File, folder or glob pattern of records to predict.", "", commands="predict"
    )
    restore_from: str = _option(
        "Output folder of an earlier training job, a checkpoint, or a folder of checkpoints (the "
        "newest), whose values the job starts from.",
        "",
    )
    output: str = _option(
        "Folder for what the job makes: the exported model (train) or the predictions "
        "(predict). Must not exist, or be empty.",
        "",
        commands="train predict",
    )
    export: str = _option(
        "What is exported to --output beside tables and dense values: keras, savedmodel, both "
        "with a comma between, or none.",
        "keras,savedmodel",
        commands="train",
    )
    export_max_table_mb: int = _option(
        "A table whose ids and rows take more than so many million bytes is not put into the "
        "exported models: the SavedModel then takes its vectors as inputs.",
        512,
        commands="train",
    )
    in_order: bool = _option(
        "Write the predictions as one Parquet file in the order of the input, instead of a "
        "file per task.",
        False,
        commands="predict",
    )
    overwrite: bool = _option(
        "Replace an ended job of the same name and a non-empty --output.", False
    )
    num_epochs: int = _option("Passes over the training data.", 1, commands="train")
    minibatch_size: int = _option("Records per training step.", 256)
    num_minibatches_per_task: int = _option(
        "Minibatches in one task, the unit that workers lease. Smaller tasks spread "
        "better, larger ones cost fewer calls to the master.",
        16,
    )
    num_workers: int = _option("Worker processes.", 1)
    num_ps: int = _option("Parameter server processes.", 1)
    embedding_threshold: int = _option(
        "Bytes of float32 values above which a plain keras.layers.Embedding is held by the "
        "parameter servers; below, it is a dense variable.",
        2_000_000,
    )
    pipeline_depth: int = _option(
        "How many of the worker's own pushes a row may lack, so that the rows of later steps are "
        "pulled and gradients of earlier ones pushed while a step computes. 0: pull, compute, "
        "push, one after the other.",
        0,
        commands="train",
    )
    wire_dtype: str = _option(
        "How rows and their gradients travel between workers and servers: float32, bfloat16 or "
        "float16. The 16-bit types halve the bytes and round each value; servers always hold "
        "float32.",
        "float32",
    )
    row_cache_mb: int = _option(
        "Megabytes in which a worker keeps rows that it pulled, to use them again. 0: none.",
        0,
        commands="train",
    )
    row_cache_staleness: int = _option(
        "A row of --row-cache-mb is pulled again when its server has applied more than this "
        "many pushes since. It lacks them, the worker's own included.",
        8,
        commands="train",
    )
    staleness_bound: int = _option(
        "A worker more than this many training steps ahead of the slowest one that trains "
        "waits for it. 0: all go step by step together. -1: nobody waits.",
        -1,
        commands="train",
    )
    lr_staleness_modulation: bool = _option(
        "Divide the learning rate of each push by its staleness, the number of other pushes "
        "that the server applied since the values were pulled, where that is above 1.",
        False,
        commands="train",
    )
    accumulate: int = _option(
        "Minibatches whose gradients a worker averages into one push, as Keras's "
        "gradient_accumulation_steps does. --num-minibatches-per-task must be a multiple.",
        1,
        commands="train",
    )
    sync: bool = _option(
        "Synchronous training: gradients of --grads-to-wait minibatches, all computed from the "
        "same values, are averaged into one update of the model.",
        False,
        commands="train",
    )
    grads_to_wait: int = _option(
        "With --sync, gradients in an update. With fewer workers, each gives several; of more, "
        "the first to come count. 0: as many as --num-workers.",
        0,
        commands="train",
    )
    sync_late: str = _option(
        "With --sync, what becomes of a gradient whose update was made without it. drop: its "
        "minibatch is trained again, from newer values. fold: it counts for the next update.",
        "drop",
        commands="train",
    )
    step_losses: bool = _option(
        "Write the loss of every training step to losses.csv in the job's folder.",
        False,
        commands="train",
    )
    evaluation_steps: int = _option(
        "Evaluate on --validation-data every this many model versions (pushes per "
        "server); 0 evaluates only at the end.",
        0,
        commands="train",
    )
    checkpoint_dir: str = _option(
        "Folder for checkpoints: a path, or a URL such as gs://bucket/folder. Default: "
        "checkpoints in the job folder.",
        "",
        commands="train",
    )
    checkpoint_steps: int = _option(
        "Take a checkpoint every this many model versions (pushes per server). 0: not by steps.",
        0,
        commands="train",
    )
    checkpoint_seconds: float = _option(
        "Take a checkpoint every this many seconds of training, and one at its end. 0: not by "
        "time; with --checkpoint-steps 0 too there are none at all.",
        300.0,
        commands="train",
    )
    keep_checkpoint_max: int = _option(
        "How many checkpoints are kept; older ones are removed.", 3, commands="train"
    )
    durability: str = _option(
        "What a parameter server's death costs. checkpoint: the updates since its last checkpoint. "
        "log: none; each update is also kept by the next server, or in a file if there is one "
        "server, before the worker is answered.",
        "checkpoint",
        commands="train",
    )
    log_mb: int = _option(
        "With --durability=log, megabytes that the log of one server may take, where it is kept. "
        "At half of it a checkpoint is taken; at all of it pushes wait for that.",
        1024,
        commands="train",
    )
    log_fsync: bool = _option(
        "With --durability=log and one server, have each update on disk before the worker is "
        "answered, so that none is lost when the machine dies, either.",
        False,
        commands="train",
    )
    seed: int = _option("Seed of initial values and of the order of tasks.", 0)
    relaunch_limit: int = _option(
        "How often one worker or server is started again after a failure before the job fails.", 3
    )
    max_bad_records: int = _option(
        "How many records may be given up at which feed, the model or the reader fails, before "
        "the job fails.",
        0,
    )
    nonfinite_gradients: str = _option(
        "What becomes of a minibatch whose loss or gradients are NaN or infinite. fail: the same "
        "as of one at which the model raises. skip: it is left out on all servers, and counted. "
        "allow: nothing is checked.",
        "fail",
        commands="train",
    )
    heartbeat_seconds: float = _option("Time between a worker's heartbeats.", 1.0)
    worker_timeout_seconds: float = _option(
        "A worker silent for this long is taken for dead and its task given to another.", 30.0
    )
    master_timeout_seconds: float = _option(
        "A worker or parameter server that has not heard of the master for about this long ends.",
        120.0,
    )
    server_patience_seconds: float = _option(
        "How long a worker waits for a parameter server that is away before it gives up.", 120.0
    )
    server_timeout_seconds: float = _option(
        "A parameter server that has not answered the master for this long is taken for hung, "
        "killed and started again.",
        60.0,
    )
    log_level: str = _option("One of debug, info, warning, error.", "info")

    def __post_init__(self) -> None:
        """Raises UserError naming the flag whose value cannot be used."""
        if self.command not in (*COMMANDS, "check"):
            raise UserError(f"command must be one of {', '.join(COMMANDS)}, not {self.command!r}")
        if self.log_level not in LOG_LEVELS:
            raise UserError(
                f"--log-level must be one of {', '.join(LOG_LEVELS)}, not {self.log_level!r}"
            )
        if self.nonfinite_gradients not in NONFINITE:
            raise UserError(
                f"--nonfinite-gradients must be one of {', '.join(NONFINITE)}, "
                f"not {self.nonfinite_gradients!r}"
            )
        if self.wire_dtype not in WIRE_DTYPES:
            raise UserError(
                f"--wire-dtype must be one of {', '.join(WIRE_DTYPES)}, not {self.wire_dtype!r}"
            )
        for name, least in (
            ("num_epochs", 1),
            ("minibatch_size", 1),
            ("num_minibatches_per_task", 1),
            ("num_workers", 1),
            ("num_ps", 1),
            ("embedding_threshold", 0),
            ("pipeline_depth", 0),
            ("row_cache_mb", 0),
            ("row_cache_staleness", 0),
            ("staleness_bound", -1),
            ("accumulate", 1),
            ("grads_to_wait", 0),
            ("evaluation_steps", 0),
            ("checkpoint_steps", 0),
            ("checkpoint_seconds", 0.0),
            ("keep_checkpoint_max", 1),
            ("log_mb", 1),
            ("export_max_table_mb", 0),
            ("relaunch_limit", 0),
            ("max_bad_records", 0),
        ):
            if getattr(self, name) < least:
                raise UserError(f"{flag(name)} must be at least {least}, not {getattr(self, name)}")
        if self.num_minibatches_per_task % self.accumulate:
            raise UserError(
                f"--num-minibatches-per-task ({self.num_minibatches_per_task}) must be a "
                f"multiple of --accumulate ({self.accumulate}): a push is of one task"
            )
        self._check_sync()
        self._check_durability()
        for name in (
            "heartbeat_seconds",
            "worker_timeout_seconds",
            "master_timeout_seconds",
            "server_patience_seconds",
            "server_timeout_seconds",
        ):
            if not getattr(self, name) > 0:
                raise UserError(f"{flag(name)} must be above 0, not {getattr(self, name)}")
        if self.worker_timeout_seconds <= self.heartbeat_seconds:
            raise UserError(
                f"--worker-timeout-seconds ({self.worker_timeout_seconds}) must be above "
                f"--heartbeat-seconds ({self.heartbeat_seconds})"
            )
        if self.master_timeout_seconds <= self.heartbeat_seconds:
            raise UserError(
                f"--master-timeout-seconds ({self.master_timeout_seconds}) must be above "
                f"--heartbeat-seconds ({self.heartbeat_seconds})"
            )
        if unknown := self.export_kinds - {"keras", "savedmodel"}:
            raise UserError(
                f"--export may hold keras and savedmodel, or be none, not {min(unknown)!r}"
            )
        if not 0 <= self.seed < 2**31:
            raise UserError(f"--seed must be from 0 to 2147483647, not {self.seed}")
        if "." not in self.model_def.replace("/", "."):
            raise UserError(
                f"--model-def must be file.function, such as deepfm.custom_model, "
                f"not {self.model_def!r}"
            )
        name_characters = self.job_name.replace("-", "")
        if self.job_name and not (name_characters.isalnum() and name_characters.isascii()):
            raise UserError(
                f"--job-name may hold letters, digits and dashes, not {self.job_name!r}"
            )
        self.check_kubernetes(self.num_workers)
        required: tuple[str, ...] = {
            "check": (),
            "train": ("training_data",),
            "evaluate": ("validation_data", "restore_from"),
            "predict": ("prediction_data", "restore_from", "output"),
        }[self.command]
        for name in required:
            if not getattr(self, name):
                raise UserError(f"{flag(name)} is required by shoal {self.command}")

    def _check_sync(self) -> None:
        if self.sync_late not in SYNC_LATE:
            raise UserError(
                f"--sync-late must be one of {', '.join(SYNC_LATE)}, not {self.sync_late!r}"
            )
        if not self.sync:
            for name, unset in (("grads_to_wait", 0), ("sync_late", SYNC_LATE[0])):
                if getattr(self, name) != unset:
                    raise UserError(f"{flag(name)} is of synchronous training: add --sync")
            return
        for name, unset in (
            ("pipeline_depth", 0),
            ("staleness_bound", -1),
            ("lr_staleness_modulation", False),
            ("row_cache_mb", 0),
        ):
            if getattr(self, name) != unset:
                raise UserError(
                    f"{flag(name)} is of asynchronous training, --sync has no use for it: "
                    "leave one of them out"
                )

    def _check_durability(self) -> None:
        if self.durability not in DURABILITIES:
            raise UserError(
                f"--durability must be one of {', '.join(DURABILITIES)}, not {self.durability!r}"
            )
        if self.durability != "log":
            for name, unset in (("log_mb", 1024), ("log_fsync", False)):
                if getattr(self, name) != unset:
                    raise UserError(f"{flag(name)} is of the log of updates: add --durability=log")
            return
        if self.sync:
            raise UserError(
                "--durability=log does not cover the gradients that wait for their update with "
                "--sync: leave one of them out"
            )
        if self.log_fsync and self.num_ps > 1:
            raise UserError(
                "--log-fsync is of a log in a file, which is that of a job with one server; with "
                f"--num-ps {self.num_ps} it is in another server's memory"
            )
        if self.command == "train" and not (self.checkpoint_steps or self.checkpoint_seconds):
            raise UserError(
                "--durability=log needs checkpoints, beyond which its log is let go of: "
                "set --checkpoint-seconds or --checkpoint-steps above 0"
                + (", and --checkpoint-dir to a place that all pods share" if self.image else "")
            )

    @property
    def gradients_per_update(self) -> int:
        """With --sync, how many gradients are averaged into one update."""
        return self.grads_to_wait or self.num_workers

    def resolved(self) -> JobConfig:
        """The same with a job name, a job folder and absolute paths."""
        model_file = self.model_def.replace("/", ".").split(".")[-2].replace("_", "-")
        # Evaluating a model must not collide with the job that trained it.
        suffix = "" if self.command == "train" else f"-{self.command}"
        name = self.job_name or model_file + suffix
        if self.image:
            given = {key: getattr(self, key) for key in ("job_dir", "checkpoint_dir", *PATHS)}
            changes: dict[str, Any] = self.paths_in_pods(name, given)
            if not changes["checkpoint_dir"]:
                if self.checkpoint_steps:
                    raise UserError(
                        "--checkpoint-steps: where no --volume holds --job-dir, checkpoints "
                        "need a --checkpoint-dir that all pods share"
                    )
                changes["checkpoint_seconds"] = 0.0
            alone = self.durability == "log" and self.num_ps == 1
            if alone and not self.shared(changes["job_dir"]):
                raise UserError(
                    "--durability=log: the log of a single server is a file in --job-dir, which "
                    "its pod would take with it: have a --volume hold it, or use --num-ps 2"
                )
            token = self.token or secrets.token_hex(8)
            return dataclasses.replace(self, job_name=name, token=token, **changes)
        job_dir = self.job_dir or os.path.join("shoal-jobs", name)
        checkpoints = self.checkpoint_dir or os.path.join(os.path.abspath(job_dir), "checkpoints")
        if "://" not in checkpoints:
            checkpoints = os.path.abspath(checkpoints)
        paths = {
            key: os.path.abspath(value)
            for key in PATHS
            # URLs and the like are left to the readers.
            if (value := getattr(self, key)) and "://" not in value
        }
        return dataclasses.replace(
            self,
            job_name=name,
            job_dir=os.path.abspath(job_dir),
            checkpoint_dir=checkpoints,
            token=self.token or secrets.token_hex(8),
            **paths,
        )

    @property
    def export_kinds(self) -> frozenset[str]:
        """What --export names."""
        kinds = frozenset(kind.strip().lower() for kind in self.export.split(","))
        return kinds - {"none", ""}

    @property
    def records_per_task(self) -> int:
        """Length of a whole task, in records."""
        return self.minibatch_size * self.num_minibatches_per_task

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
            return cls.from_json(Path(path).read_text())
        except FileNotFoundError as error:
            raise UserError(f"--config: there is no file {path}") from error
        except (json.JSONDecodeError, TypeError) as error:
            raise UserError(f"--config: {path} is not a job configuration: {error}") from error


def option_fields() -> list[dataclasses.Field[Any]]:
    """The fields that have a flag, those of Kubernetes last."""
    kubernetes = {f.name for f in dataclasses.fields(KubernetesOptions)}
    found = [f for f in dataclasses.fields(JobConfig) if f.metadata.get("commands")]
    return sorted(found, key=lambda f: f.name in kubernetes)


RESUMABLE = ("num_workers", "num_ps", "relaunch_limit", "max_bad_records")
"""Fields that `shoal train --resume` may change."""

RESUMABLE_IMAGES = ("image", "server_image")
"""Further ones of a job on Kubernetes, whose modules are in the image."""


def flag(name: str) -> str:
    """The command-line spelling of a field: num_ps -> --num-ps."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True)
class JobFolder:
    """The files of a job folder, by name; the folder is `path`."""

    path: Path

    @property
    def config(self) -> Path:
        """The JobConfig as JSON."""
        return self.path / "job.json"

    @property
    def master(self) -> Path:
        """Where the running master listens: JSON {address, pid}."""
        return self.path / "master.json"

    def master_address(self) -> str | None:
        """host:port of the running master, or of one that died; None if there is none."""
        try:
            return str(json.loads(self.master.read_text())["address"])
        except (OSError, ValueError, LookupError, TypeError):
            return None

    @property
    def lock(self) -> Path:
        """Held (flock) by the master while it runs."""
        return self.path / "lock"

    @property
    def journal(self) -> Path:
        """What has happened to the job: master/journal.py."""
        return self.path / "journal.sqlite"

    def process_of(self, role: str, index: int, incarnation: int) -> Path:
        """Which process of this machine one start is: JSON {pid, started}."""
        return self.path / "processes" / f"{role}-{index}.{incarnation}.json"

    @property
    def update_log(self) -> Path:
        """Folder of the log of updates of a job with one server, with --durability=log."""
        return self.path / "log"

    @property
    def result(self) -> Path:
        """What came of the job, JSON, written once at the end."""
        return self.path / "result.json"

    @property
    def losses(self) -> Path:
        """The loss of every training step, with --step-losses, CSV."""
        return self.path / "losses.csv"

    @property
    def audit(self) -> Path:
        """What `shoal audit` says, JSON, of a job whose journal was in a cluster."""
        return self.path / "audit.json"

    @property
    def templates(self) -> Path:
        """The Pod templates of a job on Kubernetes, JSON."""
        return self.path / "pod-templates.json"

    @property
    def logs(self) -> Path:
        """Folder of the processes' logs."""
        return self.path / "logs"

    def log_of(self, role: str, index: int, incarnation: int) -> Path:
        """Log of one start of a process."""
        return self.logs / f"{role}-{index}.{incarnation}.log"
