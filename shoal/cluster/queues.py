"""The fields of a job's objects that Kueue and Volcano read. No I/O; makes none of their objects.

Kueue: the master's Job is a workload of the queue, and each server and worker another, as a plain
pod: a group of pods has a fixed size, which a job of shoal has not. Volcano: servers and workers
have one controller, so Volcano puts them into one PodGroup, whose least number of pods it takes
from the Job that owns them. The master is outside of it, since it creates the others.
"""

from __future__ import annotations

from shoal.config.job import JobConfig

KUEUE_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
VOLCANO_MIN_MEMBER = "scheduling.volcano.sh/group-min-member"
VOLCANO_QUEUE = "scheduling.volcano.sh/queue-name"
VOLCANO = "volcano"
"""The name of its scheduler."""


def job_labels(config: JobConfig) -> dict[str, str]:
    """Further labels of the master's Job."""
    return {KUEUE_QUEUE_LABEL: config.kueue_queue} if config.kueue_queue else {}


def job_annotations(config: JobConfig) -> dict[str, str]:
    """Annotations of the master's Job."""
    if not config.volcano_min_member:
        return {}
    return {VOLCANO_MIN_MEMBER: str(config.volcano_min_member)}


def pod_labels(config: JobConfig, role: str) -> dict[str, str]:
    """Further labels of a pod of this role. The master's is queued by its Job."""
    return {} if role == "master" else job_labels(config)


def pod_annotations(config: JobConfig, role: str) -> dict[str, str]:
    """Further annotations of a pod of this role."""
    if role == "master" or not config.volcano_queue:
        return {}
    return {VOLCANO_QUEUE: config.volcano_queue}


def pod_spec(config: JobConfig, role: str) -> dict[str, str]:
    """Further fields of the spec of a pod of this role."""
    if role == "master" or not config.volcano_min_member:
        return {}
    return {"schedulerName": VOLCANO}
