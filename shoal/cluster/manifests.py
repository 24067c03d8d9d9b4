"""The Kubernetes objects of a job, as plain dicts. Names and labels; no I/O."""

from __future__ import annotations

import json
import math
from typing import Any

from shoal.cluster import certificates, given_model, metrics, queues
from shoal.cluster.pod_security import restrict
from shoal.cluster.ports import HEALTH_PORT, MASTER_PORT, PORTS, SERVER_PORT
from shoal.cluster.templates import merged
from shoal.config.groups.quantities import grown
from shoal.config.job import JobConfig
from shoal.proto.values.routing import holder_index

Manifest = dict[str, Any]

GRACE_SECONDS = {"master": 30, "ps": 120, "worker": 30}
"""For a pod that is told to end, if its template says nothing else: a worker ends after the
push under way, a server after a checkpoint."""

MASTER_RESTARTS = 100_000
"""The limit of Kubernetes, out of reach: it sums up over weeks. The master counts its starts itself
(master/cluster/masters_job.py)."""

START_RESTARTS = 2
"""Of a master that has not begun: one that lacks its rights is not started for hours."""

DEADLINE_GRACE_SECONDS = 120
"""For the master to end the job in order at its deadline, before Kubernetes ends the master, which
it is told as the master begins."""

CONFIG_FOLDER = "/etc/shoal"
CONFIG_FILE, TEMPLATES_FILE = "job.json", "pod-templates.json"
RESULT_FILE, AUDIT_FILE, METRICS_FILE = "result.json", "audit.json", "metrics.csv"

DOMAIN = "shoal.dev"
JOB_LABEL, ROLE_LABEL = f"{DOMAIN}/job", f"{DOMAIN}/role"
INDEX_LABEL, INCARNATION_LABEL = f"{DOMAIN}/index", f"{DOMAIN}/incarnation"
GROWTH_LABEL = f"{DOMAIN}/memory-growth"
"""How often a pod's memory was raised: the master that comes next reads it from there."""

STATE_LABEL, RECORDS_LABEL = f"{DOMAIN}/state", f"{DOMAIN}/records"
LEFT_LABEL = f"{DOMAIN}/time-left"
"""Of the master's Job, for `kubectl get jobs -L`: how the job goes."""

STARTS_ANNOTATION, AUTHORITY_ANNOTATION = f"{DOMAIN}/master-starts", f"{DOMAIN}/authority"
"""Of the master's Job: when masters of it were started, and whose certificates they have made."""

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"

OTHER_SERVERS_WEIGHT, NEIGHBOUR_WEIGHT = 50, 100
"""Of the wish not to share a node: with any server, and with one that keeps the other's log."""


def labels(job_name: str, role: str) -> dict[str, str]:
    """Labels of an object of this job."""
    return {
        "app.kubernetes.io/name": "shoal",
        "app.kubernetes.io/instance": job_name,
        "app.kubernetes.io/component": role,
        "app.kubernetes.io/managed-by": "shoal",
        JOB_LABEL: job_name,
        ROLE_LABEL: role,
    }


def master_name(job_name: str) -> str:
    """Name of the master's Job, and host name of its pod."""
    return f"{job_name}-master"


def pod_name(job_name: str, role: str, index: int) -> str:
    """Name of a server's or worker's pod."""
    return f"{job_name}-{role}-{index}"


def address(host: str, job_name: str, namespace: str, port: int) -> str:
    """host:port of one of the job's pods behind its headless Service."""
    return f"{host}.{job_name}.{namespace}.svc:{port}"


def owner(job_name: str, uid: str) -> list[Manifest]:
    """References that make an object go when the master's Job is deleted."""
    return [{"apiVersion": "batch/v1", "kind": "Job", "name": master_name(job_name), "uid": uid}]


def owners_of_pod(job_name: str, job_uid: str, config_map_uid: str) -> list[Manifest]:
    """References of a server's or worker's pod: to the Job, and to the ConfigMap as controller.

    A pod without a controller is one that `kubectl drain` and the cluster autoscaler leave where
    it is. The Job cannot be the controller: it would release pods that its selector does not
    have. With both, a pod outlives a ConfigMap that somebody deletes, and goes with the Job.
    """
    controller = {"apiVersion": "v1", "kind": "ConfigMap", "name": job_name, "uid": config_map_uid}
    return [controller | {"controller": True}, *owner(job_name, job_uid)]


def config_map(config: JobConfig, templates: dict[str, Manifest]) -> Manifest:
    """The job's configuration for its pods; the master adds the result."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": config.job_name, "labels": labels(config.job_name, "config")},
        "data": {
            CONFIG_FILE: config.to_json(),
            TEMPLATES_FILE: json.dumps(templates, indent=2) + "\n",
        },
    }


def service(job_name: str) -> Manifest:
    """The headless Service that gives master and servers names."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": job_name, "labels": labels(job_name, "service")},
        "spec": {
            "clusterIP": "None",
            # They find each other before they are ready.
            "publishNotReadyAddresses": True,
            "selector": {JOB_LABEL: job_name},
            "ports": [
                {"name": name, "port": port}
                for ports in PORTS.values()
                for name, port in ports.items()
            ],
        },
    }


def disruption_budget(job_name: str, available: int) -> Manifest:
    """The budget by which so many servers, at least, run while nodes are drained.

    Without an apiVersion, which depends on the cluster's.
    """
    return {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": job_name, "labels": labels(job_name, "budget")},
        "spec": {
            # A number: only of pods of a Deployment and its like is a maximum of those that are
            # away understood.
            "minAvailable": available,
            "selector": {"matchLabels": {JOB_LABEL: job_name, ROLE_LABEL: "ps"}},
        },
    }


def master_job(
    config: JobConfig,
    templates: dict[str, Manifest],
    *,
    grpc_probes: bool,
    resume: str = "",
    applied: bool = False,
) -> Manifest:
    """The Job whose one pod is the master.

    resume: names a resumption of the job. applied: the Job may be applied again at any time, and
    must not change by it: it has from the start what a master would set as it begins.
    """
    name = config.job_name
    command = ["python", "-m", "shoal.master.in_cluster"]
    command += ["--resume", resume] if resume else []
    metadata, spec = _pod(config, templates, "master", 0, command)
    container = spec["containers"][0]
    spec["serviceAccountName"] = config.service_account
    spec["hostname"] = master_name(name)
    spec["restartPolicy"] = "OnFailure"
    spec["automountServiceAccountToken"] = True
    for variable, path in (
        ("JOB_UID", "metadata.labels['controller-uid']"),
        ("POD_NAMESPACE", "metadata.namespace"),
        ("POD_NAME", "metadata.name"),
        ("POD_UID", "metadata.uid"),
    ):
        container["env"].append({"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}})
    _probe(container, config, MASTER_PORT, grpc_probes)
    limits: Manifest = {}
    if config.ttl_seconds_after_finished >= 0:
        limits["ttlSecondsAfterFinished"] = config.ttl_seconds_after_finished
    of_job: Manifest = {
        "name": master_name(name),
        "labels": labels(name, "master") | queues.job_labels(config),
    }
    if annotations := queues.job_annotations(config):
        of_job["annotations"] = annotations
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": of_job,
        "spec": limits
        | {
            # A master that is killed is started again, and goes on from its journal; it raises
            # this as it begins.
            "backoffLimit": MASTER_RESTARTS if applied else START_RESTARTS,
            "template": {"metadata": metadata, "spec": spec},
        },
    }


def process_pod(
    config: JobConfig,
    templates: dict[str, Manifest],
    role: str,
    index: int,
    incarnation: int,
    *,
    namespace: str,
    owners: list[Manifest],
    grpc_probes: bool,
    workers: int,
    servers: int,
    authority: str,
    growth: int = 0,
) -> Manifest:
    """The pod of one start of a server or worker.

    owners: its owner references. workers, servers: how many are wanted. authority: of its
    certificate, as certificates.authority_name has it. growth: how often its memory did not
    suffice.
    """
    name = pod_name(config.job_name, role, index)
    master = address(master_name(config.job_name), config.job_name, namespace, MASTER_PORT)
    command = ["python", "-m", f"shoal.{role}", "--config", f"{CONFIG_FOLDER}/{CONFIG_FILE}"]
    command += ["--index", str(index), "--incarnation", str(incarnation), "--master", master]
    if role == "ps":
        reached = address(name, config.job_name, namespace, SERVER_PORT)
        command += ["--address", f"0.0.0.0:{SERVER_PORT}", "--advertise", reached]
        command += ["--grace", str(_grace(templates, role))]
        command += [] if config.insecure else ["--health", f"0.0.0.0:{HEALTH_PORT}"]
    metadata, spec = _pod(
        config,
        templates,
        role,
        index,
        command,
        workers=workers,
        servers=servers,
        authority=authority,
    )
    # Only the master talks to the Kubernetes API.
    spec["automountServiceAccountToken"] = False
    if role == "ps":
        spec["hostname"] = name
        _probe(spec["containers"][0], config, SERVER_PORT, grpc_probes)
    resources = spec["containers"][0]["resources"]
    for end in resources.values():
        if "memory" in end:
            end["memory"] = grown(end["memory"], config.oom_memory_factor, growth)
    metadata["name"] = name
    metadata["labels"] |= {
        INDEX_LABEL: str(index),
        INCARNATION_LABEL: str(incarnation),
        GROWTH_LABEL: str(growth),
    }
    metadata["ownerReferences"] = owners
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _pod(
    config: JobConfig,
    templates: dict[str, Manifest],
    role: str,
    index: int,
    command: list[str],
    *,
    workers: int = 1,
    servers: int = 1,
    authority: str = "",
) -> tuple[Manifest, Manifest]:
    """Metadata and spec of a pod, the user's template merged under them."""
    volumes: list[Manifest] = [{"name": "config", "configMap": {"name": config.job_name}}]
    mounts: list[Manifest] = [{"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True}]
    if not config.insecure:
        volume, mount = certificates.mounted(config.job_name, role, authority, index)
        volumes.append(volume)
        mounts.append(mount)
    if config.serve_metrics:
        volume, mount = metrics.mounted()
        volumes.append(volume)
        mounts.append(mount)
    if role == "worker" and given_model.is_given(config):
        volume, mount = given_model.mounted(config.job_name)
        volumes.append(volume)
        mounts.append(mount)
    for number, given in enumerate(config.volumes()):
        source: Manifest = {
            "hostPath": {"path": given.source},
            "pvc": {"claimName": given.source},
            "configMap": {"name": given.source},
            "secret": {"secretName": given.source},
            "emptyDir": {},
        }[given.kind]
        kind = "persistentVolumeClaim" if given.kind == "pvc" else given.kind
        volumes.append({"name": f"volume-{number}", kind: source})
        placed = {"name": f"volume-{number}", "mountPath": given.mount}
        mounts.append(placed | ({"readOnly": True} if given.read_only else {}))
    container: Manifest = {
        "name": role,
        # What it said last, where `kubectl describe pod` and `shoal status` find it.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "image": config.image_of(role),
        "command": command,
        "env": [{"name": "PYTHONUNBUFFERED", "value": "1"}],
        "resources": {
            "requests": config.resources(role, "request"),
            "limits": config.resources(role, "limit"),
        },
        "volumeMounts": mounts,
    }
    if config.serve_metrics:
        container["ports"] = [metrics.port()]
    if config.environment_secrets:
        container["envFrom"] = [{"secretRef": {"name": n}} for n in config.environment_secrets]
    spec: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _grace(templates, role),
        "enableServiceLinks": False,
        "subdomain": config.job_name,
        "containers": [container],
        "volumes": volumes,
    }
    if role == "ps":
        spec["affinity"] = _apart(config, index, servers)
    if priority := config.priority_class(role, index, workers):
        spec["priorityClassName"] = priority
    template = templates.get(role, {})
    own_labels = labels(config.job_name, role) | queues.pod_labels(config, role)
    spec |= queues.pod_spec(config, role)
    metadata, spec = merged(template, {"labels": own_labels}, spec)
    restrict(role, spec, config)
    evictable = {SAFE_TO_EVICT: "true" if _outlived(config, role) else "false"}
    found = metrics.ANNOTATIONS if config.serve_metrics else {}
    annotations = evictable | found | (metadata.get("annotations") or {})
    metadata["annotations"] = annotations | queues.pod_annotations(config, role)
    return metadata, spec


def _outlived(config: JobConfig, role: str) -> bool:
    """True if the data of a pod of this role is also elsewhere, so its node may be given up."""
    if role == "master":
        return config.shared(config.job_dir)
    return role == "worker" or config.command != "train" or bool(config.checkpoint_dir)


def _apart(config: JobConfig, index: int, keeping: int) -> Manifest:
    """The wish of a server for a node of its own; apart from its log's keeper above all."""
    servers = {JOB_LABEL: config.job_name, ROLE_LABEL: "ps"}

    def wish(weight: int, selector: Manifest) -> Manifest:
        term = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
        return {"weight": weight, "podAffinityTerm": term}

    wishes = [wish(OTHER_SERVERS_WEIGHT, {"matchLabels": servers})]
    if keeping > 2 and config.log_at_servers:
        neighbours = {str(holder_index(index, keeping))}
        neighbours |= {str((index - 1) % keeping)} if index < keeping else set()
        among = [{"key": INDEX_LABEL, "operator": "In", "values": sorted(neighbours)}]
        selector = {"matchLabels": servers, "matchExpressions": among}
        wishes.append(wish(NEIGHBOUR_WEIGHT, selector))
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": wishes}}


def _grace(templates: dict[str, Manifest], role: str) -> int:
    spec = templates.get(role, {}).get("spec") or {}
    return int(spec.get("terminationGracePeriodSeconds", GRACE_SECONDS[role]))


def _probe(container: Manifest, config: JobConfig, port: int, grpc_probes: bool) -> None:
    asked = {"port": port if config.insecure else HEALTH_PORT}
    # Before Kubernetes 1.24 a kubelet knows no gRPC; that the port answers is enough.
    handler: Manifest = {"grpc": asked} if grpc_probes else {"tcpSocket": asked}
    container["readinessProbe"] = handler | {"periodSeconds": 5}
    # Nothing else is probed before this one has had an answer: imports from a cold disk take long.
    tries = math.ceil(config.start_seconds / 5)
    container["startupProbe"] = handler | {"periodSeconds": 5, "failureThreshold": tries}
    # Patient: a server that writes a checkpoint on a full machine is not to be killed.
    more = {"periodSeconds": 20, "timeoutSeconds": 10, "failureThreshold": 6}
    container["livenessProbe"] = handler | more
