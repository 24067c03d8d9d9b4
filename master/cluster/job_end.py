"""The end of a master in its pod, as Kubernetes and the watchers of its Job see it.

The Job is Complete if the job has come to its end as it should, and Failed if not: workflow
engines look at nothing else. A container that ends with an error is started again by its
kubelet, as a master that is killed has to be; so a job that failed also has its pod end.
"""

from __future__ import annotations

import datetime
import logging
import os
import signal
import sys
import threading
from typing import Any, NoReturn

from kubernetes.client.exceptions import ApiException

from shoal.base.signals import on_signal
from shoal.cluster.api import UNREACHABLE, message_of
from shoal.errors import EXIT_SUCCESS, UserError
from shoal.master.cluster.insisting import insist
from shoal.master.cluster.job_labels import labels_of_end
from shoal.master.cluster.masters_job import MastersJob

logger = logging.getLogger(__name__)

TOLD_SECONDS = 20.0
"""For the kubelet to end the pod, before this process ends by itself."""


def count_start(job: MastersJob) -> None:
    """Count a start by MastersJob.started; a failed call only warns. Raises UserError."""
    try:
        job.started(datetime.datetime.now(datetime.UTC))
    except (ApiException, *UNREACHABLE) as error:
        logger.warning("the starts of the master are not counted: %s", message_of(error))


def allow_restarts(job: MastersJob, deadline: int, authority: str) -> None:
    """Call MastersJob.begun; if that fails, the job goes on with few restarts."""
    try:
        insist(job.begun, deadline, authority)
    except (UserError, OSError) as error:
        logger.warning("this master may be restarted few times only: %s", error)


def show_end(job: MastersJob, result: dict[str, Any]) -> None:
    """Show on the Job how it has ended; a failed call is only logged."""
    try:
        job.show(labels_of_end(result))
    except (ApiException, *UNREACHABLE) as error:
        logger.warning("the Job does not show its end: %s", message_of(error))


def end(job: MastersJob, code: int) -> NoReturn:
    """End this process for good, with the job's exit code.

    With 0 if the Job cannot be told of a failure: another code would begin the job again.
    """
    if code == EXIT_SUCCESS:
        sys.exit(code)
    told = threading.Event()
    on_signal(signal.SIGTERM, told.set)
    try:
        job.fail()
    except (ApiException, *UNREACHABLE) as error:
        said = message_of(error)
        logger.warning("the Job cannot be marked as failed, and will be Complete: %s", said)
        os._exit(EXIT_SUCCESS)
    told.wait(TOLD_SECONDS)
    os._exit(code)
