"""A master whose pod is told to end: a node is drained, the pod is deleted, or its Job suspended.

Owns the steps before the process leaves the job to the next master, if one comes: the job may be
about to be deleted.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable

from kubernetes.client.exceptions import ApiException

from shoal.base.signals import on_signal
from shoal.cluster.api import UNREACHABLE, message_of
from shoal.cluster.manifests import LEFT_LABEL, STATE_LABEL
from shoal.master.cluster.lease_keeper import leave
from shoal.master.cluster.masters_job import MastersJob
from shoal.master.job.job import Job
from shoal.master.launchers.pod_launcher import PodLauncher
from shoal.master.shared_job import SharedJob

logger = logging.getLogger(__name__)

LINGER_SECONDS, LINGER_AT_MOST_SECONDS = 3.0, 25.0
"""After SIGTERM: for the servers to ask for a checkpoint, and for it to be taken."""

POLL_SECONDS = 0.5


def _servers_drain(job: Job, now: float) -> bool:
    # What has not begun to move would take longer than this master has.
    del now
    job.moves.departures.end()
    # With one that may end now there is no other checkpoint before its successor, which the next
    # master starts.
    drains = job.checkpoints.drains
    waits = drains.pending and not drains.leaving(job.members.alive_servers)
    return waits or job.moves.under_way


def suspend(job: MastersJob, remove_pods: Callable[[], None]) -> None:
    """If the Job is suspended, have the pods of its servers and workers end, as this one does.

    Kubernetes removes the master's pod only, and starts another one when the Job goes on.
    """
    try:
        if not job.suspended():
            return
        logger.warning("the Job is suspended: the job's servers and workers end")
        remove_pods()
        job.show({STATE_LABEL: "suspended", LEFT_LABEL: None})
    except (ApiException, *UNREACHABLE) as error:
        logger.warning("whether the Job is suspended, cannot be asked: %s", message_of(error))


def leave_when_told_to_end(
    shared: SharedJob,
    launcher: PodLauncher,
    name: str,
    job: MastersJob,
    remove_pods: Callable[[], None],
    *,
    lingers: bool,
) -> None:
    """Make SIGTERM end this process without ending the job.

    A drained node tells master and servers to end at the same time. The next master replaces the
    servers and workers that end.

    remove_pods: tells the pods of servers and workers to end. lingers: whether the process waits
    until no server waits for a checkpoint or a move any more: a later master finds them.
    """

    def linger() -> None:
        suspend(job, remove_pods)
        if lingers:
            time.sleep(LINGER_SECONDS)
            while shared.apply(_servers_drain):
                time.sleep(POLL_SECONDS)
            time.sleep(POLL_SECONDS)  # for the servers to hear of it
        leave(name)

    def told() -> None:
        launcher.tell_no_more()
        late = threading.Timer(LINGER_AT_MOST_SECONDS, leave, args=(name,))
        late.daemon = True
        late.start()
        threading.Thread(target=linger, name="linger", daemon=True).start()

    on_signal(signal.SIGTERM, told)
