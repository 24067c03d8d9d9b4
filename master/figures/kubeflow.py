"""The progress of a job in the status of the Kubeflow TrainJob in whose pod its master runs.

Kubeflow Trainer (2.2 and newer, feature gate TrainJobStatus) gives its containers the address of a
server, the certificate of its authority and a token; what is posted there stands in the TrainJob's
`status.trainerStatus`. The job neither waits for this nor fails by it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from shoal.master.job.job import Job
from shoal.master.job.view.sample import sample_of
from shoal.master.shared_job import SharedJob
from shoal.master.work.phases import Phase
from shoal.proto.errors import WireError

logger = logging.getLogger(__name__)

URL = "KUBEFLOW_TRAINER_SERVER_URL"
AUTHORITY = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"
"""Variables of the environment: an address, and the paths of two files."""

REPORT_SECONDS = 10.0
"""Between two reports; Kubeflow asks for 5 at least."""

CALL_SECONDS = 5.0
"""For one report."""

END_SECONDS = 15.0
"""For the last report, when the job has ended."""

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


class TrainJobReports:
    """Reports the job while it is entered, and at its end; nothing without a server.

    See `wait_for_last`.
    """

    def __init__(self, job: SharedJob, server: StatusServer | None) -> None:
        self._job, self._server = job, server
        self._trouble = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._report_at_times, name="kubeflow", daemon=True)

    def __enter__(self) -> TrainJobReports:
        if self._server is not None:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()

    def wait_for_last(self) -> None:
        """After it was left: wait for the last report, for a limited time.

        Apart from that, so that the job's result does not wait for it.
        """
        if self._thread.ident is not None:
            self._thread.join(END_SECONDS)

    def _report_at_times(self) -> None:
        assert self._server is not None
        try:
            ended = False
            while not ended:
                ended = self._ended.wait(REPORT_SECONDS)
                if (status := self._job.look(progress)) is not None:
                    self._report(self._server, status)
        except Exception:
            logger.exception("the job's progress is not reported to Kubeflow any more")

    def _report(self, server: StatusServer, status: Mapping[str, Any]) -> None:
        try:
            server.post(status)
        except (OSError, ValueError) as error:
            # The next report says all that this one would have said.
            if self._trouble != (trouble := str(error)):
                self._trouble = trouble
                text = (
                    f"warning: the TrainJob's status cannot be reported to {server.url}: {trouble}"
                )
                with contextlib.suppress(WireError):  # the journal cannot be written, either
                    self._job.answer(lambda job, now: job.noted(text, now))
        else:
            self._trouble = ""
