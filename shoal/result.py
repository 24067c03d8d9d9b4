"""What came of a job, as its users see it. Reads result.json, which master/ writes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from shoal.errors import EXIT_INTERRUPTED, EXIT_JOB_FAILED, EXIT_SUCCESS, EXIT_USER_ERROR, Error


@dataclass(frozen=True, repr=False)
class JobResult:
    """The result of a job that has ended, however it ended.

    state: "succeeded", "degraded" (it came to its end, and updates stay lost), "failed" or
        "stopped".
    metrics: of the last evaluation, by name; None stands for a NaN.
    evaluations: all of them, {version, epoch, metrics, records}.
    ledger: training records of all epochs: total, trained_once, repeated, failed, and
        pending where the job did not come to its end.
    bad_records: records given up, {data, source, record, place, error}.
    left_out: {minibatches, records, last}, left out by --nonfinite-gradients=skip.
    failure: {kind, message, traceback, range}, or None.
    job_dir: the job's folder, with its configuration, logs and result.json.
    """

    job_name: str
    command: str
    state: str
    job_dir: Path
    metrics: dict[str, float | None] = field(default_factory=dict)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    ledger: dict[str, int] = field(default_factory=dict)
    bad_records: list[dict[str, Any]] = field(default_factory=list)
    left_out: dict[str, Any] = field(default_factory=dict)
    records: int = 0
    seconds: float = 0.0
    training_seconds: float = 0.0
    samples_per_second: float = 0.0
    versions: dict[str, int] = field(default_factory=dict)
    staleness: dict[str, Any] = field(default_factory=dict)
    stage_seconds: dict[str, float] = field(default_factory=dict)
    workers: dict[str, int] = field(default_factory=dict)
    servers: dict[str, int] = field(default_factory=dict)
    log: dict[str, Any] = field(default_factory=dict)
    sync: dict[str, int] = field(default_factory=dict)
    checkpoints: dict[str, Any] = field(default_factory=dict)
    failure: dict[str, Any] | None = None
    messages: list[str] = field(default_factory=list)
    output: str | None = None

    def __repr__(self) -> str:
        """What came of the job, a line each; `shoal status` has the whole report."""
        told: dict[str, str] = {"state": self.state}
        if self.failure is not None:
            told["failure"] = str(self.failure.get("message", ""))
        told |= {n: "NaN" if v is None else f"{v:.4f}" for n, v in sorted(self.metrics.items())}
        if self.ledger:
            counts = (f"{count:,} {kind.replace('_', ' ')}" for kind, count in self.ledger.items())
            told["training records"] = ", ".join(counts)
        told["seconds"] = f"{self.seconds:.1f}"
        told |= {"output": self.output} if self.output else {}
        told["job folder"] = str(self.job_dir)
        width = max(map(len, told))
        lines = [f"  {name:<{width}}  {value}" for name, value in told.items()]
        return "\n".join([f"JobResult of shoal {self.command}: {self.job_name}", *lines])

    @classmethod
    def load(cls, path: Path) -> JobResult:
        """Read a result.json. Raises OSError if there is none, ValueError if it is not a result."""
        try:
            return cls.from_json(path.read_text(), path.parent)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @classmethod
    def from_json(cls, text: str, job_dir: Path) -> JobResult:
        """The content of a result.json. Keys that this version does not know are left out.

        Raises ValueError if it is not a result.
        """
        values = json.loads(text)
        if not isinstance(values, dict) or "state" not in values:
            raise ValueError("not a job's result")
        known = {f.name for f in fields(cls)} - {"job_dir"}
        # A value that the job never came to is null, and stands for the default here.
        given = {key: value for key, value in values.items() if key in known and value is not None}
        return cls(job_dir=job_dir, **given)

    @staticmethod
    def refused(job_name: str, command: str, message: str) -> dict[str, Any]:
        """The content of result.json for a job that could not begin: its input is wrong."""
        failure = {"kind": "USER_ERROR", "message": message, "traceback": "", "range": None}
        return {"job_name": job_name, "command": command, "state": "failed", "failure": failure}

    @property
    def exit_code(self) -> int:
        """What the command line exits with."""
        if self.state == "succeeded":
            return EXIT_SUCCESS
        if self.state == "stopped":
            return EXIT_INTERRUPTED
        user_error = self.failure is not None and self.failure.get("kind") == "USER_ERROR"
        return EXIT_USER_ERROR if user_error else EXIT_JOB_FAILED


class JobFailedError(Error):
    """The job started, and did not succeed.

    message: what went wrong. result: the job's result, None if its master died.
    """

    def __init__(self, message: str, result: JobResult | None = None) -> None:
        super().__init__(message, result)
        self.message = message
        self.result = result

    def __str__(self) -> str:
        return self.message
