"""Holds the Lease of a job's master: the requests, and the end of a master that has lost it.

What to ask for, and what an answer means, is said by job_lease.py.

`python -m shoal.master.cluster.lease_keeper NAME` gives the Lease NAME back, if this pod holds it.
A master that is told to end becomes that program (`exec`), so that nothing of it runs any more
when the next one begins.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, NoReturn

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from shoal.cluster.api import UNREACHABLE, connect_from_pod, is_final, message_of
from shoal.cluster.manifests import Manifest, labels, owner
from shoal.errors import EXIT_JOB_FAILED, UserError
from shoal.master.cluster.job_lease import DURATION_SECONDS, Claim, Read, Request, Seen, Write

logger = logging.getLogger(__name__)

CALL_SECONDS = 3.0
"""For one request: a hanging one is to leave time for others."""

TOLD_SECONDS = 30.0
"""Between two log lines of a master that waits."""

RELEASE_ATTEMPTS = 3

TERMINATION_LOG = Path("/dev/termination-log")
"""What a container writes here, Kubernetes tells of its end."""


def identity() -> str:
    """The identity of this master: its pod's name and UID, as an earlier pod may share the name."""
    return f"{os.environ['POD_NAME']}_{os.environ['POD_UID']}"


def end_process(why: str) -> None:
    """End this process at once, but not the job: the next master goes on from the journal."""
    # Even if the log cannot be written.
    late = threading.Timer(1.0, os._exit, args=(EXIT_JOB_FAILED,))
    late.daemon = True
    late.start()
    said = f"this master ends, as it has lost its Lease: {why}"
    logger.error("%s", said)
    # Which Kubernetes keeps in place of the last lines of the log.
    with contextlib.suppress(OSError):
        TERMINATION_LOG.write_text(said)
    os._exit(EXIT_JOB_FAILED)


class LeaseApi:
    """Requests about one Lease. They raise what the client raises.

    owners: its owner references.
    """

    def __init__(
        self, api: client.ApiClient, namespace: str, name: str, who: str, owners: list[Manifest]
    ) -> None:
        self._api = client.CoordinationV1Api(api)
        self._namespace, self._name = namespace, name
        self._who, self._owners = who, owners
        self._found: Any = None

    def read(self) -> Seen | None:
        """The Lease; None if there is none."""
        try:
            self._found = self._api.read_namespaced_lease(
                self._name, self._namespace, _request_timeout=CALL_SECONDS
            )
        except ApiException as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            self._found = None
            return None
        spec = self._found.spec
        duration = float(spec.lease_duration_seconds or DURATION_SECONDS)
        return Seen(self._found.metadata.resource_version, spec.holder_identity or "", duration)

    def write(self, version: str | None, *, holder: str | None = None) -> str:
        """Write the Lease over `version`, as read or written last; returns its version.

        version: None: create it. holder: by default this master; empty: nobody.
        """
        holder = self._who if holder is None else holder
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = self._found.spec if version is not None else None
        spec: Manifest = {
            "holderIdentity": holder,
            "leaseDurationSeconds": DURATION_SECONDS,
            "renewTime": now,
            "acquireTime": now,
            "leaseTransitions": 0,
        }
        if before is not None:
            transitions = before.lease_transitions or 0
            spec["leaseTransitions"] = transitions
            if holder == before.holder_identity and before.acquire_time is not None:
                spec["acquireTime"] = before.acquire_time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            elif holder:
                spec["leaseTransitions"] = transitions + 1
        metadata: Manifest = {
            "name": self._name,
            "labels": labels(self._name, "lease"),
            "ownerReferences": self._owners,
        }
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}
        options = {"_request_timeout": CALL_SECONDS}
        if version is None:
            body |= {"metadata": metadata}
            made = self._api.create_namespaced_lease(self._namespace, body, **options)
        else:
            body |= {"metadata": metadata | {"resourceVersion": version}}
            made = self._api.replace_namespaced_lease(self._name, self._namespace, body, **options)
        self._found = made
        return str(made.metadata.resource_version)


class LeaseKeeper:
    """Takes the Lease and renews it on a thread of its own.

    lost: called once, on a thread of its own, when this master holds it no more.
    """

    def __init__(
        self, api: LeaseApi, who: str, *, lost: Callable[[str], None] = end_process
    ) -> None:
        self._api, self._lost = api, lost
        self._claim = Claim(who)
        self._released = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"lease{work.__name__}", daemon=True)
            for work in (self._renew, self._watch)
        ]

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Wait for the Lease, hold it while the body runs, and give it back.

        Raises UserError if the API server refuses.
        """
        self._acquire()
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._released.set()
            self._threads[0].join()  # a request under way would be in conflict
            release(self._api, self._claim.identity)

    def _acquire(self) -> None:
        told = -TOLD_SECONDS
        while not self._claim.holds(time.monotonic()):
            # Held, and no more before anything was done: a request took too long.
            if self._claim.lost:
                self._claim = Claim(self._claim.identity)
            request = self._claim.request
            try:
                self._ask()
                why = f"{self._claim.other} has it" if self._claim.other else ""
            except ApiException as error:
                if is_final(error):
                    raise _refusal(request, error) from error
                why = message_of(error)
            except UNREACHABLE as error:
                why = message_of(error)
            if why and time.monotonic() >= told + TOLD_SECONDS:
                logger.warning("this master waits for the job's Lease: %s", why)
                told = time.monotonic()
            if not self._claim.holds(time.monotonic()):
                time.sleep(self._claim.pause)
        logger.info("%s holds the job's Lease", self._claim.identity)

    def _ask(self) -> None:
        """Make the claim's next request; a conflict is an answer. Raises what the client raises."""
        request, asked = self._claim.request, time.monotonic()
        try:
            if isinstance(request, Read):
                seen = self._api.read()
                self._claim.read(seen, time.monotonic())
            else:
                version = self._api.write(request.version)
                self._claim.wrote(version, asked, time.monotonic())
        except Exception as error:
            self._claim.failed(time.monotonic())
            if not _overtaken(request, error):
                raise

    def _renew(self) -> None:
        while not self._claim.lost and not self._released.wait(self._claim.pause):
            try:
                self._ask()
            except (ApiException, *UNREACHABLE) as error:
                logger.warning("the job's Lease could not be renewed: %s", message_of(error))
            except Exception:
                # The other thread ends this master, if it comes to that.
                logger.exception("renewing the job's Lease failed")

    def _watch(self) -> None:
        """End what is held in time, also if a request hangs."""
        while not self._claim.lost:
            assert self._claim.until is not None
            left = self._claim.until - time.monotonic()
            if self._released.wait(min(max(left, 0.0), 0.5)):
                return
            self._claim.tick(time.monotonic())
        self._lost(self._claim.lost)


def release(api: LeaseApi, who: str) -> None:
    """Release the Lease if `who` holds it; if the API does not answer, the Lease expires."""
    for _ in range(RELEASE_ATTEMPTS):
        try:
            seen = api.read()
            if seen is None or seen.holder != who:
                return
            api.write(seen.version, holder="")
        except (ApiException, *UNREACHABLE) as error:
            logger.warning("the job's Lease could not be given back: %s", message_of(error))
        else:
            return


def is_free(read: Callable[[], Seen | None]) -> bool:
    """True if nobody holds the Lease. Waits until its holder renews it or it expires.

    read: reads the Lease; its errors are raised.
    """
    claim = Claim("")
    first = seen = read()
    while seen is not None and first is not None and seen.version == first.version:
        claim.read(seen, time.monotonic())
        if isinstance(claim.request, Write):
            return True
        time.sleep(claim.pause)
        seen = read()
    return seen is None or not seen.holder


def leave(name: str) -> NoReturn:
    """End this process without ending the job, and give the Lease back; in a signal handler too."""
    command = [sys.executable, "-m", "shoal.master.cluster.lease_keeper", name]
    try:
        os.execv(command[0], command)
    finally:
        os._exit(128 + signal.SIGTERM)


def _overtaken(request: Request, error: Exception) -> bool:
    """True if the Lease has changed or gone since it was read; the next Read tells which."""
    if not isinstance(error, ApiException) or not isinstance(request, Write):
        return False
    if error.status == HTTPStatus.NOT_FOUND:
        return request.version is not None
    return bool(error.status == HTTPStatus.CONFLICT)


def _refusal(request: Request, error: ApiException) -> UserError:
    if error.status != HTTPStatus.FORBIDDEN:
        return UserError(f"the Kubernetes API refuses the job's Lease: {message_of(error)}")
    verb = "get"
    if isinstance(request, Write):
        verb = "create" if request.version is None else "update"
    return UserError(
        f"the master may not {verb} leases (coordination.k8s.io) in its namespace, and needs one "
        f"so that no other master runs the job: {message_of(error)}. Its service account needs "
        "the right to get, create and update leases: apply the Role shoal of deploy/base again"
    )


def main() -> NoReturn:
    """Give the Lease back as the program that a master becomes when it is told to end."""
    logging.basicConfig(level=logging.INFO)
    name, who = sys.argv[1], identity()
    owners = owner(name, os.environ["JOB_UID"])
    release(LeaseApi(connect_from_pod(), os.environ["POD_NAMESPACE"], name, who, owners), who)
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
