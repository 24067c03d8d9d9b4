"""The job folder: which file of a job is where.

Owns the names, and emptying the folder; what is in a file is its writer's.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

JOBS = Path("shoal-jobs")
"""Where job folders are, unless --job-dir says otherwise."""

CHECKPOINTS = "checkpoints"
"""The folder of its checkpoints in a job's folder, unless --checkpoint-dir says otherwise."""


def meant_folder(given: str) -> str:
    """A question whether a job's folder in JOBS was meant, or nothing.

    given: where a job's folder is wanted, but there is no job.
    """
    folder = JOBS / given
    meant = folder != Path(given) and JobFolder(folder).config.is_file()
    return f" (did you mean {folder}?)" if meant else ""


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path as short as it is still true: relative if below the working directory."""
    full, here = os.fspath(path), os.getcwd()
    return os.path.relpath(full, here) if full.startswith(here.rstrip("/") + "/") else full


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
        """The file with the address of the running master: JSON {address, pid}."""
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
        """Folder of what has happened to the job: master/journal/journal.py."""
        return self.path / "journal"

    def process_of(self, role: str, index: int, incarnation: int) -> Path:
        """Which process of this machine one start is: JSON {pid, started}."""
        return self.path / "processes" / f"{role}-{index}.{incarnation}.json"

    @property
    def temporary(self) -> Path:
        """Which folder the running processes have for temporary files: JSON {path}."""
        return self.path / "temporary.json"

    @property
    def identities(self) -> Path:
        """Folder of the certificates and keys of the job's processes on this machine."""
        return self.path / "identities"

    @property
    def authority_key(self) -> Path:
        """The key of the job's authority, PEM: makes certificates of further workers."""
        return self.identities / "authority.key"

    def identity_of(self, role: str, index: int) -> Path:
        """Folder of one process's certificate and key."""
        return self.identities / f"{role}-{index}"

    @property
    def update_log(self) -> Path:
        """Folder of the log of updates of a job with one server, with --durability=log."""
        return self.path / "log"

    @property
    def index(self) -> Path:
        """Folder of where the records of the job's data begin: shoal/files/described.py."""
        return self.path / "index"

    @property
    def result(self) -> Path:
        """The job's result, JSON, written once at the end."""
        return self.path / "result.json"

    @property
    def losses(self) -> Path:
        """The loss of every training step, with --step-losses, CSV."""
        return self.path / "losses.csv"

    @property
    def metrics(self) -> Path:
        """The figures of the job over time, CSV, written while it runs."""
        return self.path / "metrics.csv"

    @property
    def metrics_parquet(self) -> Path:
        """The same as Parquet, written once at the end."""
        return self.path / "metrics.parquet"

    @property
    def mlflow(self) -> Path:
        """Which run of MLflow records the job, with shoal.callbacks.MLflow: JSON {run_id}."""
        return self.path / "mlflow.json"

    @property
    def audit(self) -> Path:
        """The result of `shoal audit`, JSON, for a job whose journal was in a cluster."""
        return self.path / "audit.json"

    @property
    def templates(self) -> Path:
        """The Pod templates of a job on Kubernetes, JSON."""
        return self.path / "pod-templates.json"

    @property
    def given(self) -> Path:
        """Folder of the model and the data that a Python program gave by value."""
        return self.path / "given"

    @property
    def modules(self) -> Path:
        """Folder of the texts of the user's modules that the job began with."""
        return self.path / "modules"

    @property
    def metrics_targets(self) -> Path:
        """The addresses of the metrics of the job's processes, for Prometheus' file_sd."""
        return self.path / "metrics_targets.json"

    @property
    def logs(self) -> Path:
        """Folder of the processes' logs."""
        return self.path / "logs"

    def log_of(self, role: str, index: int, incarnation: int) -> Path:
        """Log of one start of a process."""
        return self.logs / f"{role}-{index}.{incarnation}.log"

    def empty(self) -> None:
        """Remove all that is in the folder but `config`, which says that it is a job's.

        Raises OSError.
        """
        for entry in self.path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry != self.config:
                entry.unlink()
