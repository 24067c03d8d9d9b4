"""Following a job on Kubernetes: its master's pod and the status that the master tells.

Owns when the job counts as ended, when it is given up since its master cannot start, and that its
metrics.csv is here while it runs. Creating the job and taking its result is remote.py's.
"""

from __future__ import annotations

import time

from kubernetes import client

from shoal.base.disk.job_folder import JobFolder
from shoal.base.disk.wholefile import write_text
from shoal.base.words import one_line
from shoal.client.found.following import CALL_SECONDS, POLL_SECONDS, STOP_SECONDS, Interruptions
from shoal.client.show.display import Display
from shoal.cluster import explain
from shoal.cluster.api import LONGEST_MESSAGE
from shoal.cluster.handle import JobHandle, NotBegunError, crash_of
from shoal.config.groups.kubernetes import START_ERROR_SECONDS
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.errors import CallError

ENDED = ("Succeeded", "Failed")
"""Phases of a pod that does not run any more."""

SILENT_SECONDS, START_SECONDS = 10.0, 60.0
"""For which the master of a running pod may not answer before this is said; and at first, while it
starts."""


class Following:
    """The loop that follows a job in the cluster until its master has ended."""

    over = False
    """The job has ended, never began, or is to end at once because the user says so: what is left
    of it is to be removed."""

    unknown = False
    """Nobody could be asked how it ended, so nothing is removed. Set by who asks for the result."""

    last_words = ""
    """Of the master's container that ended last."""

    def __init__(
        self,
        handle: JobHandle,
        config: JobConfig,
        folder: JobFolder,
        display: Display,
        interruptions: Interruptions,
    ) -> None:
        """folder: of this machine."""
        self.handle, self.display = handle, display
        self._folder = folder
        self._metrics_due = time.monotonic()
        self.config, self._interruptions = config, interruptions
        self._stopping_since: float | None = None
        self._stop_sent = False
        self._told: set[str] = set()
        self._ran = False
        self._stuck_since: float | None = None
        self._silent_since: float | None = None
        self._may_be_silent = START_SECONDS
        self._silences: set[str] = set()  # what was told of the silence

    def follow(self) -> None:
        """Show the job until its Job has ended, or must be given up.

        Raises UserError if the master's pod cannot start, and never ran.
        """
        while not self._must_give_up():
            pod = self._master_pod()
            if pod is None:
                if self._ended_without_pod():
                    break
            elif pod.status.phase in ENDED:
                if self._ended(pod):
                    break
            elif pod.status.phase == "Running":
                self._ran, self._stuck_since = True, None
                self._accompany(pod)
            else:
                self._check_starting(pod)
            time.sleep(POLL_SECONDS)
        self.over = True

    def _master_pod(self) -> client.V1Pod | None:
        # An API server that is away for a while does not end the job, nor this.
        while not self._must_give_up():
            try:
                return self.handle.master_pod()
            except UserError as error:
                self._tell(str(error))
                time.sleep(1.0)
        return None

    def _ended(self, pod: client.V1Pod) -> bool:
        """True if the Job has ended with this pod; otherwise another pod is coming."""
        try:
            if self.handle.over():
                return True
        except UserError as error:
            self._tell(str(error))  # as in _master_pod
            return False
        if pod.status.phase == "Failed":
            why = pod.status.reason or "an error"
            why += f": {one_line(text, LONGEST_MESSAGE)}" if (text := pod.status.message) else ""
            self.last_words = f"the master's pod {pod.metadata.name} ended with {why}"
            self._tell(self.last_words)
        return False

    def _accompany(self, pod: client.V1Pod) -> None:
        """Ask the master of a running pod how it goes, until it no longer answers."""
        config, name = self.config, pod.metadata.name
        try:
            identity = None if config.insecure else self.handle.identity(config.job_id)
        except UserError as error:
            self._tell_of_crash(pod)
            if isinstance(error, NotBegunError):
                self._tell_of_silence(pod)
            else:
                self._tell(str(error))
            return
        with self.handle.master(name, config.token, identity, CALL_SECONDS) as connection:
            answered = False
            while not self._must_give_up():
                if self._look(connection):
                    answered = True
                elif answered:
                    return
                else:
                    now = self._master_pod()
                    if now is None or now.status.phase != "Running":
                        return
                    self._tell_of_crash(now)
                    self._tell_of_silence(now)
                time.sleep(POLL_SECONDS)

    def _tell_of_crash(self, pod: client.V1Pod) -> None:
        if (crash := crash_of(pod)) is not None:
            times, how = crash
            self.last_words = f"the master ended with {how}"
            self._tell(f"{self.last_words} (restart {times})")

    def _tell_of_silence(self, pod: client.V1Pod) -> None:
        """Say after a while that nothing is heard, and what the cluster knows of the pod's node."""
        now = time.monotonic()
        self._silent_since = self._silent_since or now
        if now - self._silent_since < self._may_be_silent:
            return
        ready = {each.type: each.status for each in pod.status.conditions or ()}.get("Ready")
        warnings = self.handle.warnings(pod) if ready == "False" else []
        why = f": {warnings[-1]}" if warnings else ""
        text = f"its pod is on node {pod.spec.node_name}{why}. The display waits, the job may go on"
        self._silences.add(f"the master has not answered for {self._may_be_silent:g} s; {text}")
        for each in self._silences:
            self._tell(each)

    def _hear(self) -> None:
        """The master answers, again perhaps."""
        self._silent_since, self.last_words = None, ""
        self._may_be_silent = SILENT_SECONDS
        if self._silences:
            self._told -= self._silences
            self._silences.clear()
            self.display.event("the master answers again")

    def _look(self, connection: Connection) -> bool:
        """One call to the master: to stop, or to tell how it goes."""
        try:
            if self._stopping_since is not None and not self._stop_sent:
                request = pb.StopJobRequest(reason="interrupted by the user")
                connection.call(methods.STOP_JOB, request)
                self._stop_sent = True
            status = connection.call(methods.GET_JOB_STATUS, pb.JobStatusRequest())
        except CallError:
            return False
        self._hear()
        self.display.update(status)
        if self.config.metrics_seconds and time.monotonic() >= self._metrics_due:
            self._keep_metrics(connection)
        return True

    def _keep_metrics(self, connection: Connection) -> None:
        """Copy the master's present metrics.csv into the folder here."""
        self._metrics_due = time.monotonic() + self.config.metrics_seconds
        try:
            text = connection.call(methods.GET_JOB_METRICS, pb.JobMetricsRequest()).csv
            if text:
                write_text(self._folder.metrics, text)
        except CallError:
            pass  # asked again when the next are due
        except OSError as error:
            self._tell(f"warning: {self._folder.metrics} cannot be written: {error.strerror}")

    def _must_give_up(self) -> bool:
        if self.display.gone:
            self._interruptions.stop()
        if self._interruptions.count and self._stopping_since is None:
            self._stopping_since = time.monotonic()
            self.display.event("stopping; interrupt again to delete the job at once")
        return self._stopping_since is not None and (
            self._interruptions.count > 1 or time.monotonic() - self._stopping_since > STOP_SECONDS
        )

    def _ended_without_pod(self) -> bool:
        """True if the Job has ended and somebody deleted its pod; otherwise tell why it has none.

        Raises UserError if its service account is missing.
        """
        try:
            if self.handle.over():
                return True
            warnings = self.handle.warnings()
            suspended = self.handle.job().spec.suspend
        except UserError as error:
            self._tell(str(error))  # as in _master_pod
            return False
        for warning in warnings:
            if "serviceaccount" in warning and not self._ran:
                self.over = True
                raise UserError(
                    f"--service-account: {warning}; create it with what deploy/base has"
                )
            self._tell(f"the master's pod cannot be created: {warning}")
        if (queue := self.config.kueue_queue) and not self._ran:
            self._tell(
                f"the master waits for its turn in the queue {queue}; see kubectl get workloads"
            )
        elif suspended:
            self._tell(explain.suspended(self.handle.name, self.handle.namespace))
        return False

    def _check_starting(self, pod: client.V1Pod) -> None:
        waits = False
        for status in pod.status.container_statuses or ():
            waiting = status.state.waiting
            if waiting is not None and waiting.reason in explain.NO_START:
                waits = True
                self._cannot_start(waiting.reason, waiting.message or "")
            elif waiting is not None and waiting.reason == explain.CREATING:
                for warning in self.handle.warnings(pod)[-1:]:
                    waits = True
                    self._lacks(f"the master's pod cannot start yet: {warning}")
        for condition in pod.status.conditions or ():
            if condition.type == "PodScheduled" and condition.status == "False":
                waits = True
                self._lacks(f"no node takes the master's pod yet: {condition.message or ''}")
        if not waits:
            self._stuck_since = None

    def _lacks(self, what: str) -> None:
        """The master's pod waits for what may yet come. Raises UserError after --start-timeout."""
        now = time.monotonic()
        self._stuck_since = self._stuck_since or now
        limit = self.config.start_timeout
        if limit and now - self._stuck_since > limit and not self._ran:
            self.over = True
            raise UserError(f"--start-timeout: after {limit:g} s, {what}")
        self._tell(what)

    def _cannot_start(self, reason: str, message: str) -> None:
        """The master's container waits for what may not come. Raises UserError if that is why."""
        error = explain.cannot_start(self.config.image_of("master"), reason, message)
        now = time.monotonic()
        self._stuck_since = self._stuck_since or now
        patience = self.config.start_timeout or START_ERROR_SECONDS
        late = reason not in explain.MAY_START or now - self._stuck_since > patience
        # A job that ran is not ended by what this command sees of it.
        if late and not self._ran:
            self.over = True
            raise error
        self._tell(str(error))

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.display.event(text)
