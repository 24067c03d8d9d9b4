"""The use of the workers' time, in words: the share of each stage, and the bottleneck.

The worker owns the names of the stages; this module owns the meaning of a share for the user.
"""

from __future__ import annotations

from collections.abc import Mapping

ORDER = (
    *("read", "feed", "feed_batch", "wait for data"),
    *("ids", "pull", "wait for pull"),
    "step",
    *("push", "wait for push"),
    *("wait for workers", "wait for update"),
)
"""The order of a training step, which is that in which stages are shown."""

_GROUPS = {
    "reading and feed": ("read", "feed", "feed_batch"),
    "pulling rows from the servers": ("ids", "pull"),
    "the model's step": ("step",),
    "pushing gradients to the servers": ("push",),
    "waiting for the slowest worker": ("wait for workers",),
    "waiting for the other workers' gradients": ("wait for update",),
}
"""What may be the bottleneck -> its stages, which one thread does in turn."""


def shares(stage_seconds: Mapping[str, float]) -> dict[str, float]:
    """The share of each stage in the workers' time in training, in the order of a step.

    Stages overlap, so shares may add up to more than 1. Empty if nothing was trained: of an
    evaluation or a prediction only some stages are counted.
    """
    stages = dict(stage_seconds)
    total = stages.pop("training", 0.0)
    if not total:
        return {}
    place = {name: number for number, name in enumerate(ORDER)}
    names = sorted(stages, key=lambda name: (place.get(name, len(place)), name))
    return {name: stages[name] / total for name in names}


def stages_text(stage_seconds: Mapping[str, float]) -> str:
    """The share of each stage, in the order of a step; empty if nothing was trained."""
    return ", ".join(f"{name} {share:.0%}" for name, share in shares(stage_seconds).items())


UNKNOWN = "unknown"
"""As pb.Diagnosis.bound_by: too little was trained."""


def bound_and_step(
    bound_by: str, evidence: str, advice: str, stage_seconds: Mapping[str, float]
) -> tuple[str, str]:
    """The bound of training, and the next step, in words; "" where there is none.

    The first three arguments are as in pb.Diagnosis, which the master makes. Without a diagnosis,
    or if too little was trained for one, the sentence is about the stages alone.
    """
    if bound_by in ("", UNKNOWN):
        return bottleneck(stage_seconds), ""
    return evidence, advice


def bottleneck(stage_seconds: Mapping[str, float]) -> str:
    """A sentence that names what takes most of the workers' time; empty if nothing does."""
    found = shares(stage_seconds)
    groups = {
        words: sum(found.get(name, 0.0) for name in names) for words, names in _GROUPS.items()
    }
    words = max(groups, key=lambda each: groups[each])
    if not groups[words]:
        return ""
    return f"most of the workers' time goes into {words} ({groups[words]:.0%})"
