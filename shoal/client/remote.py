"""Running a job on Kubernetes from this process: create it, follow it, take its result.

The counterpart of client.py, with the same display: the logs of the pods and the result
are kept in a job folder here, and what was made in the cluster is deleted at the end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from kubernetes import client

from shoal.base.job_folder import JobFolder
from shoal.base.wholefile import write_json, write_text
from shoal.client.claim import claimed
from shoal.client.display import Display
from shoal.client.following import CALL_SECONDS, POLL_SECONDS, STOP_SECONDS, Interruptions
from shoal.cluster import explain
from shoal.cluster.api import connect_from_outside
from shoal.cluster.certificates import certified_workers
from shoal.cluster.data_loss import loss_warnings
from shoal.cluster.handle import JobHandle, crash_of
from shoal.cluster.manifests import ROLE_LABEL, Manifest
from shoal.cluster.templates import read_templates
from shoal.config.job import JobConfig
from shoal.config.kubernetes import START_ERROR_SECONDS
from shoal.errors import UserError
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import CallError
from shoal.proto.identity import CLIENT, Identity
from shoal.proto.rpc import Connection
from shoal.result import JobFailedError, JobResult
from shoal.security.authority import Authority, issued
from shoal.security.identities import INSECURE

Answer = TypeVar("Answer")

PATIENCE_SECONDS, AGAIN_SECONDS = 300.0, 5.0
"""For an API server that is away when the job has ended."""

LOG_LINES = 20
ENDED = ("Succeeded", "Failed")


def run_remote_job(config: JobConfig, display: Display) -> JobResult:
    """Run the job on Kubernetes to its end and return its result, whatever its state.

    Leaves nothing in the cluster, unless it is killed with SIGKILL, or fails itself while the job
    may be running. Signals as in run_job.

    Raises UserError if the job cannot be created, JobFailedError if its master dies
    without a result.
    """
    config = config.resolved()
    templates = read_templates(config.pod_template)
    handle = _handle(config)
    handle.check(config, templates)
    # Paths of the configuration are those in the pods; claiming must not look for them here.
    here = dataclasses.replace(
        config, output="", job_dir=os.path.abspath(os.path.join("shoal-jobs", config.job_name))
    )
    with claimed(here) as folder:
        return follow_job(handle, config, templates, folder, display)


def follow_job(
    handle: JobHandle,
    config: JobConfig,
    templates: dict[str, Manifest],
    folder: JobFolder,
    display: Display,
    resume: str = "",
) -> JobResult:
    """Create a job, follow it to its end and remove it; see run_remote_job.

    folder: of this machine, claimed. resume: names a resumption.
    """
    write_text(folder.config, config.to_json())
    write_text(folder.templates, json.dumps(templates))
    identities = identities_of(config)
    handle.create(config, templates, identities, resume=resume)
    interruptions = Interruptions()
    own = next((each for each in identities if each.caller.role == CLIENT), None)
    following = _Following(handle, config, own, display, interruptions)
    try:
        with display, interruptions:
            display.started(config, folder)
            for text in warnings_of(config):
                display.event(text)
            following.follow()
            return _result(following, folder, interrupted=interruptions.count > 0)
    finally:
        try:
            _collect_logs(handle, folder, display)
        finally:
            _leave(following)


def _leave(following: _Following) -> None:
    """Remove the job, or leave it alone if it may be running."""
    handle, display = following.handle, following.display
    try:
        if not following.unknown and (following.over or handle.over()):
            handle.delete()
        else:
            where = f"{handle.name} --namespace {handle.namespace}"
            display.event(
                f"the job is left in the cluster, where it may go on: see shoal status {where}, or "
                f"end it: shoal delete {where}"
            )
    except UserError as error:
        display.event(str(error))  # must not hide what ended the job


def warnings_of(config: JobConfig) -> list[str]:
    """What is to be known of a job before it runs."""
    return [*loss_warnings(config), *([f"warning: {INSECURE}"] if config.insecure else [])]


def submit(config: JobConfig) -> tuple[JobHandle, list[str]]:
    """Create the job on Kubernetes and leave it to itself; also returns warnings.

    Raises UserError.
    """
    config = config.resolved()
    templates = read_templates(config.pod_template)
    handle = _handle(config)
    handle.check(config, templates)
    handle.create(config, templates, identities_of(config))
    return handle, warnings_of(config)


def identities_of(config: JobConfig) -> list[Identity]:
    """New identities of all pods of a job, and of its client; the key that makes them is forgotten.

    Empty with --insecure.
    """
    workers = certified_workers(config)
    if workers is None:
        return []
    return list(issued(Authority.made(config.job_id), config.num_ps, workers))


def _handle(config: JobConfig) -> JobHandle:
    api, namespace = connect_from_outside()
    return JobHandle(api, config.namespace or namespace, config.job_name)


class _Following:
    """The loop that follows a job in the cluster until its master has ended.

    over: the job has ended, never began, or is to end at once because the user says so: what is
    left of it is to be removed. unknown: nobody could be asked how it ended, so nothing is removed.
    last_words: of the master's container that ended last.
    """

    def __init__(
        self,
        handle: JobHandle,
        config: JobConfig,
        identity: Identity | None,
        display: Display,
        interruptions: Interruptions,
    ) -> None:
        """identity: of this client; None with --insecure."""
        self.handle, self.display = handle, display
        self._identity = identity
        self.over = self.unknown = False
        self.last_words = ""
        self.config, self._interruptions = config, interruptions
        self._stopping_since: float | None = None
        self._stop_sent = False
        self._told: set[str] = set()
        self._ran = False
        self._stuck_since: float | None = None

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
        """Whether the Job has ended with this pod; otherwise another one is coming."""
        try:
            if self.handle.over():
                return True
        except UserError as error:
            self._tell(str(error))  # as in _master_pod
            return False
        if pod.status.phase == "Failed":
            why = pod.status.reason or "an error"
            self._tell(f"the master's pod {pod.metadata.name} ended with {why}")
        return False

    def _accompany(self, pod: client.V1Pod) -> None:
        """Ask the master of a running pod how it goes, until it no longer answers."""
        name, token = pod.metadata.name, self.config.token
        with self.handle.master(name, token, self._identity, CALL_SECONDS) as connection:
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
                time.sleep(POLL_SECONDS)

    def _tell_of_crash(self, pod: client.V1Pod) -> None:
        if (crash := crash_of(pod)) is not None:
            times, how = crash
            self.last_words = f"the master ended with {how}"
            self._tell(f"{self.last_words} (restart {times})")

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
        self.display.update(status)
        return True

    def _must_give_up(self) -> bool:
        if self._interruptions.count and self._stopping_since is None:
            self._stopping_since = time.monotonic()
            self.display.event("stopping; interrupt again to delete the job at once")
        return self._stopping_since is not None and (
            self._interruptions.count > 1 or time.monotonic() - self._stopping_since > STOP_SECONDS
        )

    def _ended_without_pod(self) -> bool:
        """Whether the Job has ended though it has no pod, which somebody deleted."""
        try:
            if self.handle.over():
                return True
            warnings = self.handle.warnings()
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
        return False

    def _check_starting(self, pod: client.V1Pod) -> None:
        waits = False
        for status in pod.status.container_statuses or ():
            waiting = status.state.waiting
            if waiting is not None and waiting.reason in explain.NO_START:
                waits = True
                self._cannot_start(waiting.reason, waiting.message or "")
        if not waits:
            self._stuck_since = None
        for condition in pod.status.conditions or ():
            if condition.type == "PodScheduled" and condition.status == "False":
                self._tell(f"the master's pod waits for room: {condition.message}")

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


def _result(following: _Following, folder: JobFolder, *, interrupted: bool) -> JobResult:
    """The job's own result, or one for a job that was given up on request.

    Raises JobFailedError with the master's last words if it died, UnreachableError if the API
    server does not say how it ended.
    """
    try:
        return _asked_result(following, folder, interrupted=interrupted)
    except explain.UnreachableError as error:
        following.unknown = True
        handle = following.handle
        raise explain.UnreachableError(
            f"{error}\nThe job has ended, and how is not known. Its result is kept in the cluster: "
            f"shoal status {handle.name} --namespace {handle.namespace}"
        ) from error


def _asked_result(following: _Following, folder: JobFolder, *, interrupted: bool) -> JobResult:
    """As `_result`."""
    handle, display, config = following.handle, following.display, following.config
    with _unless_unreachable():
        if (text := _patiently(handle.result, display)) is not None:
            write_json(folder.result, json.loads(text), allow_nan=True)
            if (audit := _patiently(handle.audit, display)) is not None:
                write_text(folder.audit, audit)
                if not json.loads(audit)["clean"]:
                    display.event(
                        f"warning: records are UNACCOUNTED FOR: shoal audit {folder.path}"
                    )
            return JobResult.load(folder.result)
    if interrupted:
        return JobResult(config.job_name, config.command, "stopped", folder.path)
    said = following.last_words or "its pod is gone"
    with _unless_unreachable():
        if (pod := handle.master_pod()) is not None:
            said = handle.log(pod, tail_lines=LOG_LINES) or "(empty)"
    raise JobFailedError(f"the job's master ended without a result; the end of its log:\n{said}")


@contextlib.contextmanager
def _unless_unreachable() -> Iterator[None]:
    """Pass over a refusal of the API server, but not over its silence."""
    try:
        yield
    except explain.UnreachableError:
        raise
    except UserError:
        pass


def _patiently(ask: Callable[[], Answer], display: Display) -> Answer:
    """Ask the API server, which may be away for some minutes. Raises UserError."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return ask()
        except explain.UnreachableError as error:
            if time.monotonic() > give_up:
                raise
            display.event(str(error))
            time.sleep(AGAIN_SECONDS)


def _collect_logs(handle: JobHandle, folder: JobFolder, display: Display) -> None:
    """Keep what the pods that are still there have written."""
    with contextlib.suppress(UserError):
        for pod in handle.pods():
            role = pod.metadata.labels[ROLE_LABEL]
            name = pod.metadata.name.removeprefix(f"{handle.name}-")
            path = folder.logs / ("master.log" if role == "master" else f"{name}.log")
            try:
                with contextlib.suppress(UserError):
                    path.write_text(handle.log(pod))
            except OSError as error:
                display.event(f"the pods' logs cannot be kept in {folder.logs}: {error.strerror}")
                return
