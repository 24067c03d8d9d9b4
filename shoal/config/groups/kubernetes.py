"""The part of a job's configuration that is about Kubernetes: its flags and their syntax.

JobConfig inherits the fields; nothing here talks to a cluster. What has no flag here is
said in --pod-template. Imports only shoal.errors and shoal.config.flags.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.config.flags import flag, option, subject
from shoal.config.groups.quantities import QUANTITY, number_of, parts_of, resource_of
from shoal.errors import UserError

PATHS = (
    "model_zoo",
    "training_data",
    "validation_data",
    "prediction_data",
    "index_dir",
    "restore_from",
    "continue_from",
    "latest",
    "output",
    "publish",
    "tensorboard_dir",
)
"""Fields of JobConfig that are paths, beside job_dir."""

ROLES = ("master", "ps", "worker")
VOLUME_KINDS = ("hostPath", "pvc", "configMap", "secret", "emptyDir")

SHARED_KINDS = ("hostPath", "pvc")
"""Those that are not a pod's own: what is written there outlives it, and others see it."""

HIGH_PRIORITY, LOW_PRIORITY = "shoal-high", "shoal-low"
"""The priority classes of deploy/, which the words high and low stand for."""

_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_OBJECT_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
LONGEST_LABEL = 63
"""Of the value of a label, as Kubernetes has it."""

LONGEST_NAME = 40
"""Of a job on Kubernetes: what is appended for its pods must fit into 63 characters."""

START_ERROR_SECONDS = 300.0
"""For a pod whose image or configuration cannot be had, without --start-timeout: long enough for a
registry that is upgraded, and for who has mistyped a name to be told."""

JOBS_FOLDER = "/tmp/shoal-jobs"
MODEL_FOLDER = "/model_zoo"
"""Where `shoal zoo init` and deploy/Dockerfile put the user's modules."""


@dataclass(frozen=True)
class Volume:
    """A volume of every pod. kind: one of VOLUME_KINDS. mount: path in the pods."""

    kind: str
    source: str
    mount: str
    read_only: bool = False


@subject
class KubernetesOptions:
    """The place where the job runs; all flags but --image count only with it."""

    image: str = option(
        "Container image with shoal and the model's files. With it the job runs as pods on "
        "Kubernetes: all paths are paths in the pods, and --model-zoo is "
        f"{MODEL_FOLDER} by default.",
        "",
        value="IMAGE",
    )
    server_image: str = option(
        "Image for the pods of the master and the servers, which need no TensorFlow. Default: "
        "--image.",
        "",
        value="IMAGE",
    )
    min_workers: int = option(
        "Number of ready workers at which training begins. It continues with fewer later.", 1
    )
    namespace: str = option(
        "Namespace for the job's pods. Default: that of the current kubectl context.",
        "",
        value="NAME",
    )
    service_account: str = option(
        "Service account of the master's pod; it needs the Role in deploy/base.",
        "shoal",
        value="NAME",
    )
    master_resources: str = option(
        "Resources that the master's pod requests, each with its limit behind a colon if it has "
        "one, such as cpu=0.5:1,memory=1Gi.",
        "cpu=0.1,memory=256Mi",
        value="RESOURCES",
    )
    ps_resources: str = option(
        "Resources of each server's pod; also gpu= and ephemeral-storage=.",
        "cpu=0.5,memory=1Gi",
        value="RESOURCES",
    )
    worker_resources: str = option(
        "Resources of each worker's pod.", "cpu=1,memory=2Gi", value="RESOURCES"
    )
    priority: str = option(
        "Priority classes of the pods of master, ps and worker: a class of the cluster, or high or "
        f"low for {HIGH_PRIORITY} and {LOW_PRIORITY} in deploy/. Of workers also the share that is "
        "high, such as worker=0.5.",
        "",
        value="ROLE=CLASS,...",
    )
    kueue_queue: str = option(
        "LocalQueue of Kueue in which the master's Job and the pods of servers and workers wait "
        "for their quota. Kueue must manage plain pods in the namespace.",
        "",
        value="NAME",
    )
    volcano: str = option(
        "Number of servers and workers that Volcano places together or not at all, such as "
        "--servers plus --min-workers, behind a queue of Volcano if they wait in one. 0: the "
        "cluster's default scheduler places each by itself.",
        "0",
        value="N|QUEUE:N",
    )
    oom_memory_factor: float = option(
        "Factor for the memory of a worker or server that is started again after it ran out of "
        "memory, up to 4 times the first request. 1: the memory never grows.",
        1.5,
        least=1,
    )
    volume: str = option(
        "Volumes of every pod, separated by semicolons: hostPath=/data,mount=/data or "
        "pvc=CLAIM,mount=/models; also configMap=, secret= and emptyDir=. ,readOnly forbids "
        "writing.",
        "",
        value="VOLUMES",
    )
    env_from_secret: str = option(
        "Secrets, separated by commas, whose keys become environment variables of every pod, for "
        "credentials and for ${NAME} in URLs.",
        "",
        value="SECRETS",
    )
    pod_template: str = option(
        "YAML file with one Pod template, or one for each of master, ps and worker, for all that "
        "has no flag. Flags override it.",
        "",
        value="FILE",
    )
    start_timeout: float = option(
        "Seconds that a pod may wait for room, an image or a configuration before the job fails. "
        "It holds for the master (not one that is applied from a file), for servers, and for "
        "workers while fewer than --min-workers are ready. 0: no limit for room, five minutes for "
        "the others. A pod that runs has as long to get ready, and five minutes at least.",
        0.0,
        least=0,
        value="SECONDS",
    )
    active_deadline_seconds: int = option(
        "Seconds after the start or the last resumption at which the job fails; it can be "
        "resumed. 0: no deadline.",
        0,
        least=0,
    )
    ttl_seconds_after_finished: int = option(
        "Seconds after which Kubernetes (1.21 or newer) removes an ended job with its pods, logs "
        "and result. -1: never.",
        -1,
        least=-1,
        value="SECONDS",
    )

    def check_kubernetes(self, num_servers: int, num_workers: int) -> None:
        """Raise UserError naming the flag whose value cannot be used."""
        if not 1 <= self.min_workers <= num_workers:
            raise UserError(
                f"--min-workers must be from 1 to --workers ({num_workers}), not {self.min_workers}"
            )
        for role in ROLES:
            for end in ("request", "limit"):
                self.resources(role, end)
            self.priority_class(role, 0, 1)
        self._check_queues(num_servers + num_workers)
        self.volumes()
        _ = self.environment_secrets

    def _check_queues(self, processes: int) -> None:
        """processes: servers and workers. Raises UserError."""
        given = {"--kueue-queue": self.kueue_queue, "--volcano": self.volcano_queue}
        for name, queue in given.items():
            if queue and (not _OBJECT_NAME.fullmatch(queue) or len(queue) > LONGEST_LABEL):
                raise UserError(f"{name}: {queue!r} is not the name of a queue")
        if self.volcano_min_member > processes:
            raise UserError(
                f"--volcano must be at most --servers plus --workers ({processes}), not "
                f"{self.volcano_min_member}: Volcano would never start the job"
            )

    @property
    def volcano_min_member(self) -> int:
        """The number of --volcano. Raises UserError."""
        queue, colon, number = self.volcano.rpartition(":")
        if not number.isdecimal() or (colon and not (queue and int(number))):
            raise UserError(
                f"--volcano must be a number, or a queue and a number, such as 6 or ads:6, not "
                f"{self.volcano!r}"
            )
        return int(number)

    @property
    def volcano_queue(self) -> str:
        """The queue of --volcano; "" for none."""
        return self.volcano.rpartition(":")[0]

    def check_name(self, job_name: str) -> None:
        """Raise UserError if pods cannot be called by the job's name."""
        if self.image and (not _DNS_LABEL.fullmatch(job_name) or len(job_name) > LONGEST_NAME):
            raise UserError(
                "--job-name: on Kubernetes a name begins with a letter and has small letters, "
                f"digits and dashes, at most {LONGEST_NAME} in all, not {job_name!r}"
            )

    def volume_of(self, path: str) -> Volume | None:
        """The volume that a path in the pods is on; None for the container's own disk."""
        on = [v for v in self.volumes() if f"{path}/".startswith(v.mount.rstrip("/") + "/")]
        return max(on, key=lambda volume: len(volume.mount), default=None)

    def shared(self, path: str) -> bool:
        """True if all pods see what one writes to `path`: a URL, or on a shared writable volume."""
        volume = self.volume_of(path)
        kept = volume is not None and volume.kind in SHARED_KINDS and not volume.read_only
        return "://" in path or kept

    def paths_in_pods(self, job_name: str, given: Mapping[str, str]) -> dict[str, Any]:
        """The job's paths by field, where they are to be found by its pods.

        checkpoint_dir is empty if there is no place for checkpoints that pods share.

        Raises UserError for a path that is relative, or a name that pods cannot have.
        """
        self.check_name(job_name)
        paths: dict[str, Any] = dict(given)
        paths["job_dir"] = given["job_dir"] or f"{JOBS_FOLDER}/{job_name}"
        if given["model_zoo"] == ".":
            paths["model_zoo"] = MODEL_FOLDER
        if not given["checkpoint_dir"] and self.shared(paths["job_dir"]):
            paths["checkpoint_dir"] = f"{paths['job_dir']}/checkpoints"
        for field_name, value in paths.items():
            if value and "://" not in value and not value.startswith("/"):
                raise UserError(
                    f"{flag(field_name)}: with --image, paths are those inside of the pods: "
                    f"give an absolute one, not {value!r}"
                )
        return paths

    def image_of(self, role: str) -> str:
        """The image of the role's pods."""
        return self.image if role == "worker" else self.server_image or self.image

    def resources(self, role: str, end: str) -> dict[str, str]:
        """Resource -> quantity, as in a container's resources. Raises UserError.

        end: request or limit.
        """
        found = {}
        flag_of = f"--{role}-resources"
        form = "RESOURCE=REQUEST or RESOURCE=REQUEST:LIMIT, such as cpu=0.5 or memory=2Gi:4Gi"
        for name, value in parts_of(flag_of, getattr(self, f"{role}_resources"), form).items():
            request, colon, limit = value.partition(":")
            if not all(map(QUANTITY.fullmatch, (request, limit) if colon else (request,))):
                raise UserError(f"{flag_of}: {name}={value} is not {form}")
            resource = resource_of(name)
            # Kubernetes takes requests of GPUs and the like only with equal limits.
            quantity = request if end == "request" or ("/" in resource and not colon) else limit
            if quantity:
                found[resource] = quantity
        return found

    def requests(self, role: str) -> dict[str, float]:
        """Resource -> what a pod of the role requests, in cores and bytes. Raises UserError."""
        named = self.resources(role, "request")
        return {resource: number_of(quantity) for resource, quantity in named.items()}

    def priority_class(self, role: str, index: int, of: int) -> str:
        """The priority class of the pod `index` of `of`; empty for the cluster's default.

        Raises UserError for a share that is none.
        """
        form = "ROLE=CLASS, such as master=high or worker=0.5"
        classes = parts_of("--priority", self.priority, form)
        if unknown := classes.keys() - set(ROLES):
            raise UserError(
                f"--priority: {min(unknown)!r} is none of {', '.join(ROLES)}, as in master=high"
            )
        given = classes.get(role, "")
        try:
            share = float(given)
        except ValueError:
            return {"high": HIGH_PRIORITY, "low": LOW_PRIORITY}.get(given, given)
        if role != "worker" or not 0 <= share <= 1:
            raise UserError(
                f"--priority: {role} must have a priority class, high or low"
                + (", or a share from 0 to 1" if role == "worker" else "")
                + f", not {given!r}"
            )
        return HIGH_PRIORITY if index < math.ceil(share * of) else LOW_PRIORITY

    def volumes(self) -> list[Volume]:
        """The volumes that `volume` describes. Raises UserError."""
        return [_volume(text.strip()) for text in self.volume.split(";") if text.strip()]

    @property
    def environment_secrets(self) -> list[str]:
        """The Secrets that `env_from_secret` names. Raises UserError."""
        names = [name.strip() for name in self.env_from_secret.split(",") if name.strip()]
        for name in names:
            if not _OBJECT_NAME.fullmatch(name):
                raise UserError(f"--env-from-secret: {name!r} is not the name of a Secret")
        return names


def _volume(text: str) -> Volume:
    fields: dict[str, str] = {}
    for part in text.split(","):
        key, _, value = (piece.strip() for piece in part.partition("="))
        fields[key] = value
    kinds = [key for key in fields if key in VOLUME_KINDS]
    unknown = set(fields) - {*VOLUME_KINDS, "mount", "readOnly"}
    if unknown or len(kinds) != 1 or not fields.get("mount", "").startswith("/"):
        raise UserError(
            f"--volume: {text!r} must have one of {', '.join(VOLUME_KINDS)} and an absolute "
            f"mount, such as pvc=CLAIM,mount=/data"
        )
    kind = kinds[0]
    if kind != "emptyDir" and not fields[kind]:
        raise UserError(f"--volume: {text!r}: {kind}= needs a name or path")
    return Volume(kind, fields[kind], fields["mount"], "readOnly" in fields)
