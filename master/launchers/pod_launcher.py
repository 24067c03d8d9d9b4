"""The launcher of a cluster: every worker and server is a pod.

Calls the Kubernetes API and watches the job's pods. pods.py decides what to do, and what the state
of a pod means. No call is made while the lock is held.
"""

from __future__ import annotations

import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection
from http import HTTPStatus
from typing import Any

from kubernetes import client, watch
from kubernetes.client.exceptions import ApiException

from shoal.cluster.api import CALL_SECONDS, UNREACHABLE, is_final, log_of, message_of, plain
from shoal.cluster.manifests import JOB_LABEL, Manifest, pod_name
from shoal.master.job.members.launcher import Exited, Launcher, LauncherEvent, Started, Waiting
from shoal.master.launchers.pod_view import PodView
from shoal.master.launchers.pods import Action, CreatePod, DeletePod, KeepLog, Pods, Report
from shoal.master.work.ids import ProcessId, Start
from shoal.proto.wire.backoff import backoff_seconds

logger = logging.getLogger(__name__)

WATCH_SECONDS = 60
"""After which a watch is begun anew: one whose connection has died silently says nothing."""

LAST_LINES = 50
KEPT_LINES, KEPT_BYTES = 20_000, 8 << 20
"""Of the end of a log that is kept."""

CONTAINER_GONE = "unable to retrieve container logs for "
"""The answer of a kubelet, as a log, for a container that it has removed."""

MOST_RETRIES_COUNTED = 8


class PodLauncher(Launcher):
    """Pods of the job `job_name`; `make_pod` gives the manifest of a start.

    make_pod: also takes how often the process ran out of memory.
    memory_steps: as of Pods. keep: keeps the end of a pod's log; raises OSError.
    """

    def __init__(
        self,
        post: Callable[[LauncherEvent], None],
        api: client.ApiClient,
        namespace: str,
        job_name: str,
        make_pod: Callable[[Start, int], Manifest],
        memory_steps: int = 0,
        keep: Callable[[Start, str], None] | None = None,
    ) -> None:
        super().__init__(post)
        self._api, self._core = api, client.CoreV1Api(api)
        self._namespace, self._job_name = namespace, job_name
        self._make_pod = make_pod
        self._pods = Pods(memory_steps)
        # The newest pod of each process, and its uid: names are used again.
        self._uids: dict[ProcessId, tuple[Start, str]] = {}
        self._tells, self._closed = True, threading.Event()
        self._version = ""  # of the watch; empty: all pods are to be listed
        self._changed = threading.Condition()
        self._actions: queue.SimpleQueue[tuple[Action, int]] = queue.SimpleQueue()
        self._keep = keep
        # Logs that are to be kept; None: it is still to be read.
        self._logs: queue.SimpleQueue[tuple[Start, str | None]] = queue.SimpleQueue()
        for work in (self._watch, self._act, self._keep_logs):
            threading.Thread(target=work, name=f"pods{work.__name__}", daemon=True).start()

    def _feed(self, change: Callable[[Pods], list[Action]]) -> None:
        with self._changed:
            actions = change(self._pods)
            self._changed.notify_all()
            # Queued under the lock, so that they are done in the order of the decisions.
            for action in actions:
                self._actions.put((action, 0))

    # ------------------------------------------------------------ the master's side

    def start(self, start: Start) -> None:
        """Create a pod, as soon as there is room for it."""
        self._feed(lambda pods: pods.start(start))

    def adopt(self, start: Start) -> None:
        """Take over the pod that an earlier master created."""
        self._feed(lambda pods: pods.adopt(start))

    def terminate(self, start: Start) -> None:
        """Delete the pod, which gets its grace period."""
        self._feed(lambda pods: pods.end(start, at_once=False))

    def kill(self, start: Start) -> None:
        """Delete the pod without grace."""
        self._feed(lambda pods: pods.end(start, at_once=True))

    def tell_no_more(self) -> None:
        """Report no end of a process from now on: another master will find the pods gone.

        Takes no lock, so a signal handler may call it.
        """
        self._tells = False

    def close(self) -> None:
        """Stop watching the cluster."""
        self._closed.set()

    def running(self) -> frozenset[Start]:
        """The processes that have not ended."""
        with self._changed:
            return self._pods.alive

    @property
    def nodes_of_servers(self) -> dict[int, str]:
        """The nodes of the servers, as in Pods."""
        with self._changed:
            return self._pods.nodes_of_servers

    def wait_gone(self, starts: Collection[Start], timeout: float) -> bool:
        """Wait at most `timeout` seconds; returns whether all of `starts` are gone."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pods.alive & set(starts), timeout)

    # ------------------------------------------------------------ the cluster's side

    def _watch(self) -> None:
        failures = 0
        while not self._closed.is_set():
            try:
                self._version = self._version or self._list()
                self._watch_on()
            except (ApiException, *UNREACHABLE) as error:
                if self._closed.is_set():
                    return
                # A watch goes on where it broke off, unless what was missed is too old.
                if isinstance(error, ApiException) and error.status == HTTPStatus.GONE:
                    self._version = ""
                logger.warning("watching the pods was interrupted: %s", message_of(error))
            except Exception:
                # This thread must go on: without it no end of a process would be seen. What
                # could not be read may have been any change, so all pods are listed.
                self._version = ""
                logger.exception("watching the pods failed, they are listed again")
            else:
                failures = 0
                continue
            failures = min(failures + 1, MOST_RETRIES_COUNTED)
            time.sleep(backoff_seconds(failures))

    @property
    def _selection(self) -> dict[str, Any]:
        return {
            "namespace": self._namespace,
            "label_selector": f"{JOB_LABEL}={self._job_name}",
        }

    def _list(self) -> str:
        """See all pods; returns the version of the list, from which a watch goes on."""
        while True:
            with self._changed:
                self._pods.listing()
            version = self._see_all()
            with self._changed:
                if not self._pods.unsure:
                    return version

    def _see_all(self) -> str:
        listed = self._core.list_namespaced_pod(**self._selection, _request_timeout=CALL_SECONDS)
        found = (PodView.of(plain(self._api, pod)) for pod in listed.items)
        views = [view for view in found if view is not None]
        for view in views:
            self._know(view.start, view.uid)
        self._feed(lambda pods: pods.listed(views))
        return str(listed.metadata.resource_version)

    def _watch_on(self) -> None:
        """See what changes after the version seen last, for a while."""
        stream = watch.Watch().stream(
            self._core.list_namespaced_pod,
            **self._selection,
            resource_version=self._version,
            timeout_seconds=WATCH_SECONDS,
            _request_timeout=(CALL_SECONDS, WATCH_SECONDS + CALL_SECONDS),
        )
        for event in stream:
            pod = event["raw_object"]
            if (view := PodView.of(pod)) is not None:
                self._seen(event["type"], view)
            self._version = str(pod["metadata"]["resourceVersion"])

    def _seen(self, kind: str, view: PodView) -> None:
        if kind == "DELETED":
            self._feed(lambda pods: pods.gone(view.start))
        else:
            self._know(view.start, view.uid)
            self._feed(lambda pods: pods.seen(view))

    def _know(self, start: Start, uid: str) -> None:
        with self._changed:
            before = self._uids.get(start.process)
            if before is None or before[0].incarnation <= start.incarnation:
                self._uids[start.process] = start, uid

    def _act(self) -> None:
        while True:
            action, attempt = self._actions.get()
            try:
                self._do(action)
            except ApiException as error:
                # A quota that is used up is a wait for room like any other.
                if is_final(error) and "exceeded quota" not in message_of(error):
                    self._refused(action, error)
                else:
                    self._again(action, attempt, message_of(error))
            except UNREACHABLE as error:
                self._again(action, attempt, message_of(error))
            except Exception:
                # This thread must go on: without it the job would hang.
                logger.exception("%s failed", action)
                self._again(action, attempt, "it failed, see the master's log")

    def _again(self, action: Action, attempt: int, why: str) -> None:
        attempt = min(attempt + 1, MOST_RETRIES_COUNTED)
        logger.warning("%s is tried again: %s", action, why)
        if isinstance(action, CreatePod):
            self._feed(lambda pods: pods.waits(action.start, "its pod cannot be created yet", why))
        timer = threading.Timer(
            backoff_seconds(attempt), self._actions.put, args=((action, attempt),)
        )
        timer.daemon = True
        timer.start()

    def _refused(self, action: Action, error: ApiException) -> None:
        message = message_of(error)
        logger.error("%s was refused: %s", action, message)
        if isinstance(action, CreatePod):
            self._feed(lambda pods: pods.refused(action.start, message))

    def _do(self, action: Action) -> None:
        match action:
            case CreatePod(start, growth):
                self._create(start, growth)
            case DeletePod(start, at_once):
                self._delete(start, at_once)
            case Report(exited, with_log) if self._tells:
                self._post(self._with_log(exited) if with_log else exited)
            case KeepLog(start) if self._keep is not None:
                self._logs.put((start, None))
            case Started() | Waiting():
                self._post(action)

    def _create(self, start: Start, growth: int) -> None:
        with self._changed:
            if not self._pods.wanted(start):
                return  # ended meanwhile, or an earlier attempt had succeeded after all
        made = self._core.create_namespaced_pod(
            self._namespace, self._make_pod(start, growth), _request_timeout=CALL_SECONDS
        )
        self._know(start, made.metadata.uid)
        self._feed(lambda pods: pods.created(start))

    def _name(self, start: Start) -> str:
        return pod_name(self._job_name, start.process.role, start.process.index)

    def _delete(self, start: Start, at_once: bool) -> None:
        """Delete the pod of this start, and no other one: a late repetition finds its successor."""
        with self._changed:
            known, uid = self._uids.get(start.process, (start, ""))
        if known.incarnation > start.incarnation:
            self._feed(lambda pods: pods.gone(start))
            return
        uid = uid if known == start else ""  # it was made, and the answer was lost
        options = client.V1DeleteOptions(
            grace_period_seconds=0 if at_once else None,
            preconditions=client.V1Preconditions(uid=uid) if uid else None,
        )
        try:
            self._core.delete_namespaced_pod(
                self._name(start), self._namespace, body=options, _request_timeout=CALL_SECONDS
            )
        except ApiException as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                raise
            self._feed(lambda pods: pods.gone(start))

    def _with_log(self, exited: Exited) -> Exited:
        try:
            text = self._end_of_log(exited.start)
        except (ApiException, *UNREACHABLE) as error:
            text = f"(its log cannot be read: {message_of(error)})"
        else:
            self._logs.put((exited.start, text))
        last = text.rstrip().splitlines()[-LAST_LINES:]
        return dataclasses.replace(exited, last_lines="\n".join(last))

    def _end_of_log(self, start: Start) -> str:
        """The part of a pod's log that is kept, or else its last lines."""
        last = {"tail_lines": LAST_LINES}
        if self._keep is None:
            return self._log(start, last)
        text = self._log(start, {"tail_lines": KEPT_LINES, "limit_bytes": KEPT_BYTES})
        if len(text.encode()) < KEPT_BYTES:
            return text
        return f"{text}\n...\n{self._log(start, last)}"  # the limit has cut off the end

    def _log(self, start: Start, limits: dict[str, int]) -> str:
        options = {"_request_timeout": CALL_SECONDS} | limits
        name, role = self._name(start), start.process.role
        text = log_of(self._api, self._namespace, name, role, **options)
        if text.startswith(CONTAINER_GONE):
            raise ApiException(HTTPStatus.NOT_FOUND, text)
        return text

    def _keep_logs(self) -> None:
        """Keep the logs of pods that end; beside all else, as a node may take long to answer."""
        while True:
            start, text = self._logs.get()
            try:
                if text is None:
                    text = self._end_of_log(start)
                    with self._changed:
                        newest, _ = self._uids.get(start.process, (start, ""))
                    if newest != start:
                        continue  # the name is used again: whose log it is nobody knows
                if self._keep is not None:
                    self._keep(start, text)
            except (ApiException, OSError, *UNREACHABLE) as error:
                logger.warning("the log of %s is not kept: %s", start, message_of(error))
            except Exception:
                logger.exception("the log of %s is not kept", start)
