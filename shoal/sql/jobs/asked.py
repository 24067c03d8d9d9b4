"""The attributes of WITH, divided: flags of the job, the statement's own, and the model's own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from shoal.base.words import near, near_or_all
from shoal.config.flags import kind_of
from shoal.config.job import fields_of
from shoal.config.signatures import checked, in_python
from shoal.errors import UserError
from shoal.sql.clause import Attribute
from shoal.sql.errors import SqlError
from shoal.sql.terms import Place

OTHER_NAMES = {
    "epoch": "epochs",
    "num_epochs": "epochs",
    "minibatch_size": "batch_size",
    "num_workers": "workers",
    "num_ps": "servers",
    "num_ps_pods": "servers",
}
"""Names of flags in SQLFlow and ElasticDL."""

OF_STATEMENT = frozenset(
    {"model_def", "model_params", "training_data", "validation_data"}
    | {"prediction_data", "restore_from", "output", "in_order", "job_dir", "job_name", "overwrite"}
    | {"fill_missing", "missing_mask", "columns"}
)
"""Flags that a statement says by itself."""

_PREFIXES = ("train", "shoal", "engine", "runtime")


@dataclass
class Asked:
    """The attributes of a statement: name -> value, and their places.

    flags: of the job. own: those among the names that the statement knows. rest: the others.
    """

    flags: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    rest: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)

    def refuse_rest(self, known: Iterable[str]) -> None:
        """Raise SqlError for an attribute that nobody knows."""
        for name in self.rest:
            hint = near_or_all(name, [*known, "train.epoch", "train.batch_size", "shoal.FLAG"])
            raise SqlError(f"there is no attribute {name} here{hint}", self.places[name])


def divided(command: str, attributes: Iterable[Attribute], own: Iterable[str]) -> Asked:
    """The attributes of a statement whose job is of a command. Raises SqlError."""
    known = {each.name: each for each in fields_of(command) if each.name not in OF_STATEMENT}
    asked = Asked()
    for each in attributes:
        asked.places[each.name] = each.place
        prefix, _, said = each.name.partition(".")
        if each.name in own:
            asked.own[each.name] = each.plain()
        elif prefix not in _PREFIXES or not said:
            asked.rest[each.name] = each.plain()
        else:
            said = said.replace("-", "_")
            flag = OTHER_NAMES.get(said, said)
            if flag in OF_STATEMENT:
                raise SqlError(f"{each.name} is said by the statement itself", each.place)
            if flag not in known:
                hint = near(each.name, [f"{prefix}.{name}" for name in (*known, *OTHER_NAMES)])
                raise SqlError(f"there is no flag {said} of shoal {command}{hint}", each.place)
            try:
                asked.flags[flag] = checked(flag, each.plain(), kind_of(known[flag]))
            except UserError as error:
                raise SqlError(f"{each.name}: {in_python(str(error))}", each.place) from error
    return asked
