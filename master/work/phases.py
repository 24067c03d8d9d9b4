"""The phases of a job: which there are, which may follow which, and a job's own plan.

    starting -> describing -> [evaluating first] -> training -> [saving] -> [evaluating]
                                           -> [exporting] -> [publishing] -> [confirming]
                                        -> evaluating
                                        -> predicting -> finishing
    and from each of these, in the end, -> succeeded, or degraded where updates stay lost

From a phase after training a job goes back to training where a server has lost what is to be
trained again. From every phase before the end it may go to failed or stopped. What happens on
entering a phase is phase_machine.py's.
"""

from __future__ import annotations

import enum

from shoal.base.transitions import Transitions
from shoal.config.job import JobConfig


class Phase(enum.Enum):
    """The phase of a job. The value is the state that users see."""

    STARTING = "starting"  # servers have not all registered

    # Distinct to us, the same to users: nothing is trained or computed yet.
    DESCRIBING = "starting, reading data"

    EVALUATING_FIRST = "evaluating, before training"  # the earlier model on the new records
    TRAINING = "training"
    SAVING = "saving"  # the checkpoint at the end of training
    EVALUATING = "evaluating"  # the last round; rounds within training are TRAINING
    PREDICTING = "predicting"
    FINISHING = "predicting, completing the output"
    EXPORTING = "exporting"
    PUBLISHING = "publishing"  # the delta that has all that was trained
    CONFIRMING = "confirming"  # the servers are asked whether they have everything
    SUCCEEDED = "succeeded"
    DEGRADED = "degraded"  # it has come to its end, and updates stay lost
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def ended(self) -> bool:
        """True if nothing more is done."""
        return self in (Phase.SUCCEEDED, Phase.DEGRADED, Phase.FAILED, Phase.STOPPED)

    @property
    def complete(self) -> bool:
        """True if the job has come to its end by itself, with a model or predictions."""
        return self in (Phase.SUCCEEDED, Phase.DEGRADED)

    @property
    def state(self) -> str:
        """The state as users see it: one word."""
        return self.value.partition(",")[0]


_END = frozenset({Phase.SUCCEEDED, Phase.DEGRADED})

_AFTER_TRAINING = (
    *(Phase.SAVING, Phase.EVALUATING, Phase.EXPORTING, Phase.PUBLISHING),
    Phase.CONFIRMING,
)
"""In their order; each may be left out, and from each of them training may begin again."""

BEFORE_THE_END_OF_TRAINING = frozenset(
    {Phase.STARTING, Phase.DESCRIBING, Phase.EVALUATING_FIRST, Phase.TRAINING}
)
"""Phases in which the job is to train, or trains."""

_FORWARD: dict[Phase, frozenset[Phase]] = {
    Phase.STARTING: frozenset({Phase.DESCRIBING}),
    Phase.DESCRIBING: frozenset(
        {Phase.EVALUATING_FIRST, Phase.TRAINING, Phase.EVALUATING, Phase.PREDICTING}
    ),
    Phase.EVALUATING_FIRST: frozenset({Phase.TRAINING}),
    Phase.TRAINING: frozenset(_AFTER_TRAINING) | _END,
    Phase.PREDICTING: frozenset({Phase.FINISHING}),
    Phase.FINISHING: frozenset({Phase.SUCCEEDED}),
} | {
    phase: frozenset({Phase.TRAINING, *_AFTER_TRAINING[position + 1 :]}) | _END
    for position, phase in enumerate(_AFTER_TRAINING)
}

TRANSITIONS = Transitions(
    "a job",
    {phase: following | {Phase.FAILED, Phase.STOPPED} for phase, following in _FORWARD.items()},
)
"""The phases that may follow each phase; the ended ones have none."""


def plan(config: JobConfig) -> list[Phase]:
    """The phases that this job goes through when all goes well, in order."""
    phases = [Phase.STARTING, Phase.DESCRIBING]
    if config.command == "train":
        if config.evaluates_first:
            phases.append(Phase.EVALUATING_FIRST)
        phases.append(Phase.TRAINING)
        if config.checkpoint_steps or config.checkpoint_seconds:
            phases.append(Phase.SAVING)
        if config.validation_data or config.progressive_steps:
            phases.append(Phase.EVALUATING)
        if config.output:
            phases.append(Phase.EXPORTING)
        if config.publish:
            phases.append(Phase.PUBLISHING)
        if not config.sync:  # there a server's death ends the job
            phases.append(Phase.CONFIRMING)
    elif config.command == "evaluate":
        phases.append(Phase.EVALUATING)
    else:
        phases += [Phase.PREDICTING, Phase.FINISHING]
    return [*phases, Phase.SUCCEEDED]
