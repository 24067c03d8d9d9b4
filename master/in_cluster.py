"""`python -m shoal.master.in_cluster`: the process of a master whose job runs as pods.

Owns what differs from a master on one machine: where it listens, where its
configuration comes from, that the job's objects go when its Job is deleted, and that
the result goes into the job's ConfigMap.

It ends with code 0 once the result is there, be it a failure: another code would have
Kubernetes start it again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from shoal import log
from shoal.cluster import manifests
from shoal.cluster.api import (
    CALL_SECONDS,
    UNREACHABLE,
    connect_from_pod,
    has_grpc_probes,
    message_of,
)
from shoal.cluster.manifests import Manifest
from shoal.config import JobConfig
from shoal.errors import EXIT_JOB_FAILED, EXIT_USER_ERROR, UserError
from shoal.job_folder import JobFolder
from shoal.master.__main__ import RunningError, run_job
from shoal.master.bounded import bounded
from shoal.master.cluster_start import remove_pods, take_folder
from shoal.master.ids import Start
from shoal.master.kept_audit import audit_apart
from shoal.master.lease_keeper import LeaseApi, LeaseKeeper, identity, is_free, leave
from shoal.master.pod_launcher import PodLauncher
from shoal.master.runner import Runner
from shoal.proto.backoff import backoff_seconds
from shoal.result import JobResult

logger = logging.getLogger(__name__)

TERMINATION_LOG = Path("/dev/termination-log")

PATIENCE_SECONDS = 300.0
"""For the API to take a change: an upgrade of a control plane takes minutes."""

LINGER_SECONDS, LINGER_AT_MOST_SECONDS = 3.0, 25.0
"""After SIGTERM: for the servers to ask for a checkpoint, and for it to be taken."""

POLL_SECONDS = 0.5

RESULT_BYTES, AUDIT_BYTES = 400_000, 300_000
"""A ConfigMap holds a MiB, the job's configuration and templates among it."""

NOTE_BYTES = 2_000
"""Of these, for what the result or audit lacks."""


@click.command()
@click.option("--config-folder", default=manifests.CONFIG_FOLDER, type=click.Path(path_type=Path))
@click.option("--resume", default="", help="Name of this resumption of a job that has ended.")
def main(config_folder: Path, resume: str) -> None:
    """Run the master of one job in its pod until the job has ended."""
    try:
        config = JobConfig.load(config_folder / manifests.CONFIG_FILE)
        log.configure("master", config.log_level)
        templates = json.loads((config_folder / manifests.TEMPLATES_FILE).read_text())
        api, namespace = connect_from_pod(), os.environ["POD_NAMESPACE"]
        try:
            _run(config, templates, api, namespace, resume)
        except RunningError:
            raise  # started again, it may find that one gone
        except UserError as error:
            # Nothing is mended by another start: this is the job's result.
            logger.error("%s", error)
            result = JobResult.refused(config.job_name, config.command, str(error))
            _insist(
                client.CoreV1Api(api).patch_namespaced_config_map,
                config.job_name,
                namespace,
                {"data": published(json.dumps(result), None, config.job_dir)},
            )
    except (UserError, OSError) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_JOB_FAILED)


def _run(
    config: JobConfig,
    templates: dict[str, Manifest],
    api: client.ApiClient,
    namespace: str,
    resume: str,
) -> None:
    """Run the job as its one master, and publish its result, whatever it is."""
    name, who = config.job_name, identity()
    # A master is made to be killed at any time: a pod that is taken away must not stop the
    # job. As the first process of a container it has no default handlers.
    signal.signal(signal.SIGTERM, lambda *_: leave(name))
    # A client of its own: renewals are not to wait for other calls.
    calls = connect_from_pod()
    lease = LeaseApi(calls, namespace, name, who, manifests.owner(name, os.environ["JOB_UID"]))
    with LeaseKeeper(lease, who).held():
        _run_alone(config, templates, api, namespace, resume)


def _run_alone(
    config: JobConfig,
    templates: dict[str, Manifest],
    api: client.ApiClient,
    namespace: str,
    resume: str,
) -> None:
    uid, folder = os.environ["JOB_UID"], JobFolder(Path(config.job_dir))

    def runs(job_name: str) -> bool:
        other = LeaseApi(api, namespace, job_name, "", [])
        return not is_free(lambda: _insist(other.read))

    take_folder(folder, config, resume=bool(resume), runs=runs)
    core, name = client.CoreV1Api(api), config.job_name
    owned = {"metadata": {"ownerReferences": manifests.owner(name, uid)}}
    patch_config = partial(core.patch_namespaced_config_map, _request_timeout=CALL_SECONDS)
    patch_service = partial(core.patch_namespaced_service, _request_timeout=CALL_SECONDS)
    _insist(patch_config, name, namespace, owned)
    _insist(patch_service, name, namespace, owned)
    grpc_probes = _insist(has_grpc_probes, api)
    if not folder.journal.exists():
        _insist(remove_pods, core, namespace, name)

    def make_pod(start: Start, growth: int) -> Manifest:
        return manifests.process_pod(
            config,
            templates,
            start.process.role,
            start.process.index,
            start.incarnation,
            namespace=namespace,
            uid=uid,
            grpc_probes=grpc_probes,
            workers=config.num_workers,
            growth=growth,
        )

    def make_launcher(runner: Runner, _: str) -> PodLauncher:
        steps = manifests.memory_steps(config.oom_memory_factor)
        launcher = PodLauncher(runner.post, api, namespace, name, make_pod, steps)
        if config.shared(config.job_dir):
            linger_when_told_to_end(runner, launcher, name)
        return launcher

    code = run_job(
        config,
        folder,
        manifests.MASTER_PORT,
        host="0.0.0.0",
        stop_signals=(),
        resume=resume,
        lock=False,
        make_launcher=make_launcher,
    )
    audit: str | None = None
    try:
        audit = audit_apart(folder)
    except UserError as error:
        logger.error("%s", error)  # which must not keep the result back
    data = published(folder.result.read_text(), audit, config.job_dir)
    _insist(patch_config, name, namespace, {"data": data})
    if code:
        with contextlib.suppress(OSError):
            TERMINATION_LOG.write_text(json.loads(folder.result.read_text())["state"])


def linger_when_told_to_end(runner: Runner, launcher: PodLauncher, name: str) -> None:
    """Have SIGTERM end this process only when no server waits for a checkpoint any more.

    A drained node tells master and servers to end at the same time. To replace what ends is
    left to the master that comes next, if one does: the job may be about to be deleted.
    """

    def linger() -> None:
        time.sleep(LINGER_SECONDS)
        while runner.apply(lambda job, _: job.checkpoints.hand_overs.pending):
            time.sleep(POLL_SECONDS)
        time.sleep(POLL_SECONDS)  # for the servers to hear of it
        leave(name)

    def told(*_: object) -> None:
        launcher.tell_no_more()
        late = threading.Timer(LINGER_AT_MOST_SECONDS, leave, args=(name,))
        late.daemon = True
        late.start()
        threading.Thread(target=linger, name="linger", daemon=True).start()

    signal.signal(signal.SIGTERM, told)


def published(result: str, audit: str | None, job_dir: str) -> dict[str, str]:
    """What the job's ConfigMap says of its end: result.json and the audit, as far as they fit.

    One that is too large would be refused whole, however the job ended. What is left out is
    said in the result's messages and the audit's text.
    """
    content, lacks = bounded(json.loads(result), RESULT_BYTES - NOTE_BYTES)
    if lacks:
        note = _note(lacks, f"{job_dir}/{manifests.RESULT_FILE} has all")
        content["messages"] = [*content.get("messages", ()), note]
    if len(result.encode()) > RESULT_BYTES:  # of which spaces may be the most
        result = json.dumps(content)
    data = {manifests.RESULT_FILE: result}
    if audit is not None:
        content, lacks = bounded(json.loads(audit), AUDIT_BYTES - NOTE_BYTES)
        if lacks:
            note = _note(lacks, f"`shoal audit {job_dir}` says all")
            content["text"] = "\n".join([content.get("text", ""), note])
            audit = json.dumps(content)
        data[manifests.AUDIT_FILE] = audit
    return data


def _note(lacks: Sequence[str], where: str) -> str:
    lines = "; ".join(lacks)[: NOTE_BYTES // 3]
    return f"too large for the cluster's ConfigMap, which has {lines}. {where}"


def _insist(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call the API until it answers.

    Raises UserError if it refuses, OSError if it cannot be reached for minutes.
    """
    give_up = time.monotonic() + PATIENCE_SECONDS
    attempt = 0
    while True:
        attempt += 1
        try:
            return call(*arguments)
        except ApiException as error:
            if 400 <= error.status < 500 and error.status not in (409, 429):
                raise UserError(
                    f"the Kubernetes API refuses the master: {message_of(error)}; its service "
                    "account needs the Role shoal of deploy/base"
                ) from error
            why = message_of(error)
        except UNREACHABLE as error:
            why = str(error)
        if time.monotonic() > give_up:
            raise OSError(f"the Kubernetes API did not answer: {why}")
        logger.warning("the Kubernetes API is asked again: %s", why)
        time.sleep(backoff_seconds(attempt))


if __name__ == "__main__":
    main()
