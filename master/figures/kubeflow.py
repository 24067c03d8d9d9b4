"""The progress of a job in the status of the Kubeflow TrainJob in whose pod its master runs.

Kubeflow Trainer (2.2 and newer, feature gate TrainJobStatus) gives its containers the address of a
server, the certificate of its authority and a token; what is posted there stands in the TrainJob's
`status.trainerStatus`. The job neither waits for this nor fails by it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from shoal.master.figures.reporter import Reporter
from shoal.master.job.job import Job
from shoal.master.job.view.sample import sample_of
from shoal.master.shared_job import SharedJob
from shoal.master.work.phases import Phase

URL = "KUBEFLOW_TRAINER_SERVER_URL"
AUTHORITY = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"
"""Variables of the environment: an address, and the paths of two files."""

CALL_SECONDS = 5.0
"""For one report."""

FIGURES = ("loss", "learning_rate", "samples_per_second", "workers", "servers")
"""Of a sample, which are told as metrics; beside the epoch and the last evaluation."""

MOST_METRICS = 256
"""In one report, as the TrainJob's schema has it."""


def progress(job: Job, now: float) -> dict[str, Any] | None:
    """The `trainerStatus` of the job at the time `now`; None before it has begun.

    Progress is of the records that are to be trained, in all epochs; where nothing is trained, of
    those to be evaluated or predicted. It is 100 % only of a job that has succeeded.
    """
    if not job.record.started:
        return None
    sample, ledger = sample_of(job, now), job.work.ledger
    done, total = job.work.records
    if ledger.total:
        done, total = ledger.total - ledger.pending, ledger.total
    metrics = {name: sample[name] for name in FIGURES}
    if ledger.total:
        metrics |= {"currentEpoch": sample["epoch"] + 1, "totalEpochs": job.config.epochs}
    if job.work.evaluation_results:
        last = job.work.evaluation_results[-1].metrics
        metrics |= {f"eval_{name}": value for name, value in last.items()}
    status: dict[str, Any] = {"metrics": _metrics(metrics)}
    if job.phases.phase is Phase.SUCCEEDED:
        status |= {"progressPercentage": 100, "estimatedRemainingSeconds": 0}
    elif total:
        status["progressPercentage"] = min(99, done * 100 // total)
        if (rate := sample["samples_per_second"]) > 0:
            status["estimatedRemainingSeconds"] = math.ceil((total - done) / rate)
    return status


def _metrics(figures: Mapping[str, float | None]) -> list[dict[str, str]]:
    return [
        {"name": name, "value": f"{value:.6g}"}
        for name, value in figures.items()
        if value is not None and math.isfinite(value)
    ][:MOST_METRICS]


@dataclass(frozen=True)
class StatusServer:
    """The Kubeflow server that takes reports. authority, token: paths of files; empty for none."""

    url: str
    authority: str = ""
    token: str = ""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> StatusServer | None:
        """The server that the variables name; None if this is no pod of such a TrainJob."""
        if not (url := environment.get(URL)):
            return None
        return cls(url, environment.get(AUTHORITY, ""), environment.get(TOKEN, ""))

    def post(self, status: Mapping[str, Any]) -> None:
        """Post a `trainerStatus`, observed now. Raises OSError, ValueError."""
        import ssl  # late: few masters have use for it
        import urllib.request

        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = json.dumps({"trainerStatus": {**status, "lastUpdatedTime": now}}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        if self.token:
            # Anew each time: the kubelet replaces it before it expires.
            token = Path(self.token).read_text().strip()
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        context = None
        if self.url.startswith("https:"):
            context = ssl.create_default_context(cafile=self.authority or None)
        with urllib.request.urlopen(request, timeout=CALL_SECONDS, context=context) as answer:
            answer.read()


class TrainJobReports(Reporter):
    """Reports the job while it is entered, and at its end; nothing without a server."""

    SECONDS = 10.0
    """Kubeflow asks for 5 at least."""

    END_SECONDS = 15.0
    LOST = "Kubeflow does not take the last report"

    def __init__(self, job: SharedJob, server: StatusServer | None) -> None:
        where = server.url if server else ""
        super().__init__(f"the TrainJob's status cannot be reported to {where}", job.warn)
        self._job, self._server = job, server

    def __enter__(self) -> Self:
        return super().__enter__() if self._server is not None else self

    def report(self, ended: bool) -> bool:
        """See Reporter. Each report says all that one before it would have said."""
        del ended
        if self._server is None or (status := self._job.look(progress)) is None:
            return False
        self._server.post(status)
        return True
