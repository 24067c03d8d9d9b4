"""A pod as the Kubernetes API shows it, and what the cluster's words for it mean.

Knows the API's fields and reasons, nothing of what follows from them: that is pods.py's. No I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.cluster.manifests import (
    GROWTH_LABEL,
    INCARNATION_LABEL,
    INDEX_LABEL,
    ROLE_LABEL,
)
from shoal.master.work.ids import ServerId, Start, WorkerId

NEVER_STARTS = frozenset(
    {"ErrImageNeverPull", "InvalidImageName", "CreateContainerError", "RunContainerError"}
)
"""Reasons of a waiting container that waiting does not mend."""

LOST_PLACE = frozenset({"Evicted", "NodeLost", "Shutdown", "Terminated", "NodeShutdown"})
"""Reasons of a failed pod that are the cluster's, not the process's."""

LOST_CONTAINER = "ContainerStatusUnknown"
"""Why a container has ended that its node does not know any more, as after the node's restart."""

REFUSED_BY_NODE = frozenset(
    {
        "Preempting",
        "UnexpectedAdmissionError",
        "UnexpectedPredicateFailureType",
        "NodeAffinity",
        "NodeName",
        "NodePorts",
        "TaintToleration",
        "TopologyAffinityError",
    }
)
"""Reasons for which a kubelet fails a pod that the scheduler gave it, beside OutOf<resource>:
it knows better what its node has left. The next one may suit another node."""

OUT_OF_RESOURCE = "OutOf"

OUT_OF_MEMORY = "OOMKilled"

_KINDS: dict[str, type[WorkerId] | type[ServerId]] = {
    WorkerId.role: WorkerId,
    ServerId.role: ServerId,
}


@dataclass(frozen=True)
class PodView:
    """The facts of a pod that count, as the API shows it."""

    start: Start

    phase: str
    """As the API has it: Pending, Running, Succeeded or Failed."""

    deleting: bool = False
    """It has been asked to end."""

    reason: str = ""
    """The cluster's word for a failed pod."""

    code: int | None = None
    """The exit code of its container, once that has ended."""

    ended_by: str = ""
    """Why that container ended, such as OOMKilled."""

    waiting: tuple[str, str] = ("", "")
    """Why it does not start, as (reason, message)."""

    disrupted: str = ""
    """Why the cluster took it away, if it says so."""

    message: str = ""
    """More on `reason`."""

    growth: int = 0
    """How often its memory had been raised."""

    node: str = ""
    """Where it is; empty before it has a place."""

    uid: str = ""
    """Of this pod, and of none that has its name later."""

    @property
    def refused(self) -> bool:
        """True if its node did not take the pod, or gave its place to another pod."""
        return self.phase == "Failed" and (
            self.reason in REFUSED_BY_NODE or self.reason.startswith(OUT_OF_RESOURCE)
        )

    @classmethod
    def of(cls, pod: dict[str, Any]) -> PodView | None:
        """A pod of the API; None if it is no server's or worker's."""
        metadata, status = pod["metadata"], pod.get("status") or {}
        labels = metadata.get("labels") or {}
        kind = _KINDS.get(labels.get(ROLE_LABEL, ""))
        try:
            index, incarnation = int(labels[INDEX_LABEL]), int(labels[INCARNATION_LABEL])
            growth = int(labels.get(GROWTH_LABEL, 0))
        except (KeyError, ValueError):
            return None
        if kind is None:
            return None
        name = labels[ROLE_LABEL]  # a template may have containers beside it
        containers = [c for c in status.get("containerStatuses") or [] if c.get("name") == name]
        state = (containers[0].get("state") or {}) if containers else {}
        ended, waiting = state.get("terminated") or {}, state.get("waiting") or {}
        reason, message = waiting.get("reason") or "", waiting.get("message") or ""
        disrupted = ""
        for condition in status.get("conditions") or []:
            kind_of_condition, value = condition.get("type"), condition.get("status")
            if kind_of_condition == "PodScheduled" and value == "False":
                reason, message = condition.get("reason") or "", condition.get("message") or ""
            elif kind_of_condition == "DisruptionTarget" and value == "True":
                disrupted = condition.get("reason") or "disrupted"
        return cls(
            Start(kind(index), incarnation),
            status.get("phase", "Pending"),
            bool(metadata.get("deletionTimestamp")),
            status.get("reason") or "",
            ended.get("exitCode"),
            ended.get("reason") or "",
            (reason, message),
            disrupted,
            status.get("message") or "",
            growth,
            (pod.get("spec") or {}).get("nodeName") or "",
            metadata.get("uid") or "",
        )
