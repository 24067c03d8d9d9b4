"""`python -m shoal.master.in_cluster`: the process of a master whose job runs as pods.

Owns what differs from a master on one machine: where it listens, where its
configuration comes from, that the job's objects go when its Job is deleted, and that
the result goes into the job's ConfigMap.

Once the result is there it ends with the exit code of the job; job_end.py sees to it that
Kubernetes does not start it again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import click
from kubernetes import client

from shoal.base import log
from shoal.base.disk import job_logs
from shoal.base.disk.job_folder import JobFolder
from shoal.base.thinned import ThinnedFile
from shoal.cluster import certificates, manifests
from shoal.cluster.api import GRPC_PROBES_SINCE, connect_from_pod, version_of
from shoal.cluster.manifests import Manifest
from shoal.cluster.ports import HEALTH_PORT, MASTER_PORT
from shoal.config.groups.quantities import memory_steps
from shoal.config.job import JobConfig
from shoal.config.url_variables import check_variables
from shoal.errors import EXIT_JOB_FAILED, EXIT_USER_ERROR, UserError, without_secrets
from shoal.master.__main__ import RunningError, run_job
from shoal.master.cluster.bounded import bounded
from shoal.master.cluster.insisting import insist
from shoal.master.cluster.job_certificates import JobCertificates
from shoal.master.cluster.job_end import allow_restarts, count_start, end, show_end
from shoal.master.cluster.job_events import JobEvents, end_of
from shoal.master.cluster.job_labels import labels_of
from shoal.master.cluster.job_objects import JobObjects, look_after
from shoal.master.cluster.lease_keeper import (
    TERMINATION_LOG,
    LeaseApi,
    LeaseKeeper,
    identity,
    is_free,
    leave,
)
from shoal.master.cluster.masters_job import MastersJob
from shoal.master.cluster.told_to_end import leave_when_told_to_end
from shoal.master.cluster_start import end_pods, remove_pods, take_folder
from shoal.master.job.events import Noted
from shoal.master.job.job import Job
from shoal.master.journal.kept_audit import audit_apart
from shoal.master.launchers.pod_launcher import PodLauncher
from shoal.master.runner import Runner
from shoal.master.work.ids import Start
from shoal.proto.identity import IdentityError
from shoal.result import JobResult

logger = logging.getLogger(__name__)

RESULT_BYTES, AUDIT_BYTES = 400_000, 300_000
"""A ConfigMap holds a MiB, the job's configuration, templates and metrics among it."""

NOTE_BYTES = 2_000
"""Of these, for what the result or audit lacks."""


@click.command()
@click.option("--config-folder", default=manifests.CONFIG_FOLDER, type=click.Path(path_type=Path))
@click.option("--resume", default="", help="Name of this resumption of a job that has ended.")
def main(config_folder: Path, resume: str) -> None:
    """Run the master of one job in its pod until the job has ended."""
    try:
        config = JobConfig.load(config_folder / manifests.CONFIG_FILE)
        log.configure("master", config.log_level, config.log_format, job=config.job_name)
        templates = json.loads((config_folder / manifests.TEMPLATES_FILE).read_text())
        pod = _Pod(config, templates)
        try:
            code = _run(pod, resume)
        except RunningError:
            raise  # started again, it may find that one gone
        except UserError as error:
            # Nothing is mended by another start: this is the job's result.
            logger.error("%s", error)
            result = JobResult.refused(config.job_name, config.command, str(error))
            try:
                insist(pod.objects.publish, published(json.dumps(result), None, config.job_dir))
            except UserError:
                raise error from None  # which comes first, and is told by how this process ends
            pod.events.tell(end_of(result))
            show_end(pod.job, result)
            code = EXIT_USER_ERROR
    except (UserError, OSError, IdentityError) as error:
        click.echo(f"Error: {without_secrets(str(error))}", err=True)
        with contextlib.suppress(OSError):
            TERMINATION_LOG.write_text(without_secrets(str(error)))
        sys.exit(EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_JOB_FAILED)
    end(pod.job, code)


class _Pod:
    """The master's pod, and its duties in the cluster."""

    def __init__(self, config: JobConfig, templates: dict[str, Manifest]) -> None:
        self.config, self.templates = config, templates
        self.api, self.namespace = connect_from_pod(), os.environ["POD_NAMESPACE"]
        name, self.uid = config.job_name, os.environ["JOB_UID"]
        self.objects = JobObjects(self.api, self.namespace, config, templates, self.uid)
        self.events = JobEvents(self.api, self.namespace, name, self.uid)
        self.job = MastersJob(self.api, self.namespace, name, os.environ["POD_NAME"])


def _run(pod: _Pod, resume: str) -> int:
    """Run the job as its one master, and publish its result, whatever it is.

    Returns the job's exit code.
    """
    check_variables(pod.config)
    name, who = pod.config.job_name, identity()
    # A master is made to be killed at any time: a pod that is taken away must not stop the
    # job. As the first process of a container it has no default handlers.
    signal.signal(signal.SIGTERM, lambda *_: leave(name))
    # A client of its own: renewals are not to wait for other calls.
    calls = connect_from_pod()
    lease = LeaseApi(calls, pod.namespace, name, who, manifests.owner(name, pod.uid))
    with LeaseKeeper(lease, who).held():
        return _run_alone(pod, resume)


def _run_alone(pod: _Pod, resume: str) -> int:
    config, api, namespace = pod.config, pod.api, pod.namespace
    name, folder = config.job_name, JobFolder(Path(config.job_dir))

    def runs(job_name: str) -> bool:
        other = LeaseApi(api, namespace, job_name, "", [])
        return not is_free(lambda: insist(other.read))

    count_start(pod.job)
    take_folder(folder, config, resume=bool(resume), runs=runs)
    core = client.CoreV1Api(api)
    insist(pod.objects.keep)
    own = JobCertificates(api, namespace, config, pod.uid).prepared()
    authority = certificates.authority_name(own) if own else ""
    allow_restarts(pod.job, config.active_deadline_seconds, authority)
    version = insist(version_of, api)
    if not folder.journal.exists():
        insist(remove_pods, core, namespace, name)

    def make_pod(runner: Runner, start: Start, growth: int) -> Manifest:
        workers, servers = runner.job.look(_wanted)
        return manifests.process_pod(
            config,
            pod.templates,
            start.process.role,
            start.process.index,
            start.incarnation,
            namespace=namespace,
            owners=pod.objects.owners_of_pods,
            grpc_probes=version >= GRPC_PROBES_SINCE,
            workers=workers,
            servers=servers,
            authority=authority,
            growth=growth,
        )

    ended = threading.Event()

    def make_launcher(runner: Runner, _: str) -> PodLauncher:
        steps = memory_steps(config.oom_memory_factor)
        make = partial(make_pod, runner)
        shared = config.shared(config.job_dir)
        launcher = PodLauncher(
            runner.post, api, namespace, name, make, steps, keep_log if shared else None
        )
        leave_when_told_to_end(
            runner.job,
            launcher,
            name,
            pod.job,
            partial(end_pods, core, namespace, name),
            lingers=shared,
        )

        def tell(text: str) -> None:
            runner.job.apply(Noted(text))

        def available() -> int:
            nodes = launcher.nodes_of_servers
            return runner.job.look(lambda job, _: left_running(job, nodes))

        def show() -> None:
            pod.job.show(runner.job.look(labels_of))

        def keep() -> None:
            look_after(pod.objects, available, version, tell, show, ended)

        for work in (keep, partial(pod.events.follow, runner.job, ended)):
            threading.Thread(target=work, daemon=True).start()
        return launcher

    def keep_log(start: Start, text: str) -> None:
        job_logs.keep_log(folder, start.process.role, start.process.index, start.incarnation, text)

    def publish() -> None:
        ended.set()
        audit: str | None = None
        try:
            audit = audit_apart(folder)
        except UserError as error:
            logger.error("%s", error)  # which must not keep the result back
        result = folder.result.read_text()
        metrics = ThinnedFile(folder.metrics).text()
        insist(pod.objects.publish, published(result, audit, config.job_dir, metrics))
        pod.events.tell(end_of(json.loads(result)))
        show_end(pod.job, json.loads(result))

    try:
        code = run_job(
            config,
            folder,
            MASTER_PORT,
            host="0.0.0.0",
            stop_signals=(),
            resume=resume,
            make_launcher=make_launcher,
            health=f"0.0.0.0:{HEALTH_PORT}",
            publish=publish,
            identity=own,
        )
    finally:
        ended.set()
    if code:
        with contextlib.suppress(OSError):
            TERMINATION_LOG.write_text(JobResult.read(folder.result).state)
    return code


def _wanted(job: Job, _now: float) -> tuple[int, int]:
    """The number of workers wanted now, and of servers: a job may be scaled."""
    return job.members.workers_wanted, job.moves.servers_wanted


def left_running(job: Job, nodes: Mapping[int, str]) -> int:
    """The number of servers that draining nodes must leave running: all but those of one node.

    Servers that share a node are told to end together, and drain with one checkpoint. Only servers
    that hold the model now count. nodes: by the index of a server.
    """
    routing = job.moves.routing
    holding = [index for index in range(routing.servers) if index not in routing.absent]
    shared = Counter(nodes[index] for index in holding if index in nodes)
    return max(0, len(holding) - max(shared.values(), default=1))


def published(result: str, audit: str | None, job_dir: str, metrics: str = "") -> dict[str, str]:
    """The job's end for its ConfigMap: result.json and audit, cut to fit, and metrics.

    metrics: as ThinnedFile gives them. A ConfigMap that is too large would be refused whole,
    however the job ended. What is left out is said in the result's messages and the audit's text.
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
    if metrics:
        data[manifests.METRICS_FILE] = metrics
    return data


def _note(lacks: Sequence[str], where: str) -> str:
    lines = "; ".join(lacks)[: NOTE_BYTES // 3]
    return f"too large for the cluster's ConfigMap, which has {lines}. {where}"


if __name__ == "__main__":
    main()
