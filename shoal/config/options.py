"""All options of one job: the fields of its configuration by subject, each with its flag.

A field, its flag, the argument of the Python API and the key in job.json have one name, so that a
search for it finds every use. The subjects are classes: code that needs one subject takes that
class, and every JobConfig is an instance of it.

The files of groups/ declare the fields. Owns the values
that follow from the fields alone; checks.py knows which values go together.
"""

from __future__ import annotations

import re
from dataclasses import Field, dataclass, fields
from typing import Any

from shoal.config.budget import Budget
from shoal.config.groups.autoscaling import AutoscalingOptions
from shoal.config.groups.data_format import FormatOptions
from shoal.config.groups.kubernetes import KubernetesOptions
from shoal.config.groups.learning import (
    ConsistencyOptions,
    DataOptions,
    ModelOptions,
    TrainingOptions,
)
from shoal.config.groups.publishing import PublishingOptions
from shoal.config.groups.running import (
    CheckpointOptions,
    DurabilityOptions,
    MonitoringOptions,
    OutputOptions,
    ProcessOptions,
    ServerOptions,
)
from shoal.errors import UserError

NUMBER = re.compile("[1-9][0-9]{0,8}")
"""A number of processes."""

MOST_SHUFFLED = 100_000_000
"""Records of --shuffle buffer:N, which a worker holds in memory."""


class JobOptions(
    KubernetesOptions,
    AutoscalingOptions,
    ProcessOptions,
    MonitoringOptions,
    PublishingOptions,
    OutputOptions,
    CheckpointOptions,
    DurabilityOptions,
    ServerOptions,
    ConsistencyOptions,
    TrainingOptions,
    FormatOptions,
    DataOptions,
    ModelOptions,
):
    """All fields of JobConfig, and what follows from several of them."""

    @property
    def worker_range(self) -> tuple[int, int]:
        """The least and the largest number of --workers. Raises UserError if it is none."""
        return _range("--workers", self.workers)

    @property
    def server_range(self) -> tuple[int, int]:
        """The least and the largest number of --servers. Raises UserError if it is none."""
        return _range("--servers", self.servers)

    @property
    def num_workers(self) -> int:
        """The number of workers with which the job begins."""
        return self.worker_range[0]

    @property
    def num_servers(self) -> int:
        """The number of servers with which the job begins."""
        return self.server_range[0]

    @property
    def scales_workers(self) -> bool:
        """True if the job finds its number of workers, and replaces slow ones, itself."""
        return ":" in self.workers

    @property
    def scales_servers(self) -> bool:
        """True if the job adds servers itself."""
        return ":" in self.servers

    @property
    def budget(self) -> Budget:
        """The most that workers and servers may request. Raises UserError."""
        return Budget(self.limits, self.requests("worker"), self.requests("ps"))

    @property
    def gradients_per_update(self) -> int:
        """With --sync, how many gradients are averaged into one update."""
        return self.grads_to_wait or self.num_workers - self.evaluation_workers

    @property
    def log_in_files(self) -> bool:
        """True if the log of updates, if one is kept, is in files of the job folder."""
        # As measured on one machine (docs/benchmarks.md). Files of a pod end with it.
        files = not self.image or self.num_servers == 1
        return self.durability in ("file", "disk") or (self.durability != "peer" and files)

    @property
    def log_at_servers(self) -> bool:
        """True if servers keep each other's logs of updates, in memory."""
        return self.keeps_log and not self.log_in_files

    @property
    def why_no_log(self) -> str:
        """The reason that no log of updates can be kept, and its remedy; "" if one can.

        For a resolved configuration.
        """
        if not (self.checkpoint_steps or self.checkpoint_seconds):
            return (
                "the job takes no checkpoints, beyond which its log is let go of: set "
                "--checkpoint-seconds or --checkpoint-steps above 0"
                + (", and --checkpoint-dir to a place that all pods share" if self.image else "")
            )
        if self.image and self.log_in_files and not self.shared(self.job_dir):
            return (
                "files in --job-dir, where the log of a single server is, or with "
                "--durability=file, would go with the servers' pods: have a --volume hold "
                "--job-dir, or use --durability=peer with --servers 2 or more"
            )
        return ""

    @property
    def unprotected(self) -> str:
        """The cost of a server's death where no log of updates can be kept, with the reason.

        In words; "" if a log is kept, or could be. For a resolved configuration.
        """
        if self.command != "train" or self.keeps_log or not self.why_no_log:
            return ""
        if self.sync:
            return (
                "no log of updates is kept: the death of a parameter server ends the job, which "
                f"can be resumed from its newest checkpoint. The reason: {self.why_no_log}"
            )
        cost = {
            "retrain": "is trained again",
            "accept": "stays lost, and the job ends as degraded",
            "fail": "ends the job",
        }
        return (
            "no log of updates is kept: what a parameter server that dies has learned since the "
            f"last checkpoint {cost[self.on_loss]}. The reason: {self.why_no_log}"
        )

    @property
    def export_kinds(self) -> frozenset[str]:
        """The kinds that --export names, in lower case; empty for "none"."""
        kinds = frozenset(kind.strip().lower() for kind in self.export.split(","))
        return kinds - {"none", ""}

    @property
    def shuffles_tasks(self) -> bool:
        """True if training tasks are in a random order."""
        return self.shuffle not in ("none", "time")

    @property
    def shuffle_buffer(self) -> int:
        """Records of the windows within which records are shuffled; 0 for none.

        Raises UserError for a --shuffle that is none.
        """
        kind, colon, size = self.shuffle.partition(":")
        if self.shuffle in ("tasks", "none", "time"):
            return 0
        if kind == "buffer" and size.isdecimal() and 2 <= int(size) <= MOST_SHUFFLED:
            return int(size)
        near = f", such as {kind}:10000" if kind == "buffer" and not colon else ""
        raise UserError(
            f"--shuffle must be tasks, buffer:N, none or time, not {self.shuffle!r}: N is a "
            f"number of records from 2 to {MOST_SHUFFLED}{near}"
        )

    @property
    def records_per_step(self) -> int:
        """Records of one push."""
        return self.batch_size * self.accumulate

    @property
    def records_per_task(self) -> int:
        """Length of a whole task, in records."""
        return self.batch_size * self.num_minibatches_per_task


def _range(flag: str, value: str) -> tuple[int, int]:
    """The numbers of N or N:M. Raises UserError if it is none."""
    least, colon, most = value.partition(":")
    most = most if colon else least
    if not (NUMBER.fullmatch(least) and NUMBER.fullmatch(most)) or int(least) > int(most):
        raise UserError(
            f"{flag} must be a number from 1, such as 4, or the least and the largest, such as "
            f"1:8, not {value!r}"
        )
    return int(least), int(most)


@dataclass(frozen=True)
class Group:
    """Flags of one subject: a section of the help and of the page of flags."""

    title: str
    options: tuple[type, ...]

    @property
    def about(self) -> str:
        """The subject in a sentence."""
        return (self.options[0].__doc__ or "").partition("\n")[0]

    @property
    def fields(self) -> list[Field[Any]]:
        """Its fields that have a flag, in order."""
        own = [each for options in self.options for each in fields(options)]
        return [each for each in own if each.metadata.get("commands")]


GROUPS = (
    Group("Model and job", (ModelOptions,)),
    Group("Data", (DataOptions, FormatOptions)),
    Group("Training", (TrainingOptions,)),
    Group("Consistency", (ConsistencyOptions,)),
    Group("Servers", (ServerOptions,)),
    Group("Durability", (DurabilityOptions,)),
    Group("Checkpoints", (CheckpointOptions,)),
    Group("Evaluation and export", (OutputOptions,)),
    Group("Publishing", (PublishingOptions,)),
    Group("Monitoring", (MonitoringOptions,)),
    Group("Processes", (ProcessOptions,)),
    Group("Autoscaling", (AutoscalingOptions,)),
    Group("Kubernetes", (KubernetesOptions,)),
)
"""The subjects of a job's flags, in the order in which a reader needs them."""
