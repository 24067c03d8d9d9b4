"""TO TRAIN, from the clause and the SELECT's rows to the arguments of shoal.train.

A canned model has its columns planned and its module written (columns.py, module.py); a module of
the user's gets what `model.` says as its parameters.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.base.words import near_or_all
from shoal.config.flags import flag, kind_of
from shoal.config.job import fields_of
from shoal.config.signatures import checked
from shoal.data.opening import open_reader
from shoal.data.samples.analysis import analyze
from shoal.sql import module
from shoal.sql.clause import Clause
from shoal.sql.columns import SelectSchema, plan
from shoal.sql.databases.engine import Saved
from shoal.sql.errors import SqlError
from shoal.sql.jobs.asked import Asked, divided
from shoal.sql.models.attributes import checked as checked_attributes
from shoal.sql.models.attributes import model_of
from shoal.sql.models.plan import Plan
from shoal.sql.terms import Call, Listed, Name, Place, Term

VALIDATION = "validation.select"

LEFT_OUT = ("xgboost.", "BoostedTrees", "sqlflow_models.")
"""Beginnings of the names of models that SQLFlow has, and shoal has not."""


@dataclass(frozen=True)
class Training:
    """A statement that is ready to be trained.

    text: of model.py; "" of a user's module. arguments: of shoal.train for the model, its data and
    flags; `of_model` those of them that predictions need as well. said: sentences to be printed.
    """

    algorithm: str
    asked: Asked
    text: str
    plan: Plan | None
    arguments: dict[str, Any]
    of_model: dict[str, Any]
    said: list[str] = field(default_factory=list)


def is_module(name: Name | None) -> bool:
    """True if a statement names a function of the user's module. Raises SqlError by name."""
    if name is None:
        return False
    for begin in LEFT_OUT:
        if name.text.lower().startswith(begin.lower()):
            raise SqlError(
                f"shoal has no model {name.text}: there are {', '.join(module.known_models)}, and "
                "functions of your own modules, such as clicks.custom_model",
                name.place,
            )
    if "." not in name.text:
        model_of(name.text, name.place)
        return False
    if not all(part.isidentifier() for part in name.text.split(".")):
        raise SqlError(
            f"{name.text} is neither a model of shoal ({', '.join(module.known_models)}) nor a "
            "function of a module of yours, such as clicks.custom_model",
            name.place,
        )
    return True


def asked_by(clause: Clause) -> Asked:
    """The attributes of a statement, checked as far as can be without data. Raises SqlError."""
    asked = divided("train", clause.attributes, [VALIDATION])
    if VALIDATION in asked.own and not isinstance(asked.own[VALIDATION], str):
        raise SqlError(f"{VALIDATION} is a SELECT in quotes", asked.places[VALIDATION])
    if is_module(clause.name):
        params = {n.partition(".")[2]: v for n, v in asked.rest.items() if n.startswith("model.")}
        asked.rest = {n: v for n, v in asked.rest.items() if not n.startswith("model.")}
        asked.refuse_rest([VALIDATION, "model.PARAMETER"])
        asked.flags = {"model_zoo": str(Path.cwd()), **asked.flags, "model_params": params}
        return asked
    if "model_zoo" in asked.flags:
        raise SqlError(
            "model_zoo is for a module of yours, such as clicks.custom_model", clause.place
        )
    if clause.name is not None:
        # Before the SELECT, which may take long. Those of a model that shoal is to choose are
        # checked with the module's text.
        checked_attributes(model_of(clause.name.text), asked.rest, asked.places)
    return asked


def prepared(clause: Clause, asked: Asked, data: Saved, folder: Path) -> Training:
    """The training of a statement whose SELECT's rows are in a file.

    folder: where its model.py is to be. Raises SqlError.
    """
    if is_module(clause.name):
        return _of_module(clause, asked, data)
    if clause.label is None:
        raise SqlError("LABEL and the column that is learned are missing", clause.place)
    statistics = analyze(open_reader(str(data.path), "--training-data"))
    made = plan(clause.columns, clause.label, SelectSchema.of(data.schema), statistics)
    algorithm = model_of(clause.name.text) if clause.name else made.default_model
    places: dict[str, Place] = asked.places | {"": (clause.name or clause.label).place}
    text = module.text(made, algorithm, asked.rest, places)
    of_model = {
        "model_def": "model.custom_model",
        "model_zoo": str(folder),
        "fill_missing": made.fill_missing,
        "missing_mask": made.missing_mask,
    }
    of_model = {name: value for name, value in of_model.items() if value}
    said = [*made.hints]
    if clause.name is None or not clause.columns or "*" in str(clause.columns):
        head = f"TO TRAIN {algorithm}"
        said.append(f"this trains: {head}\n{made.clause()}\nLABEL {made.label.column}")
    return Training(algorithm, asked, text, made, {**of_model, **asked.flags}, of_model, said)


def _of_module(clause: Clause, asked: Asked, data: Saved) -> Training:
    assert clause.name is not None
    named = [term for terms in clause.columns.values() for term in terms]
    for name in [*_names(named), *([clause.label] if clause.label else [])]:
        if name.text not in (*data.schema.names, "*"):
            hint = near_or_all(name.text, data.schema.names)
            raise SqlError(f"the SELECT gives no column {name.text}{hint}", name.place)
    of_model = {"model_def": clause.name.text}
    of_model |= {name: asked.flags[name] for name in ("model_zoo", "model_params")}
    return Training(clause.name.text, asked, "", None, {**of_model, **asked.flags}, of_model)


def _names(terms: Sequence[Term]) -> list[Name]:
    """The columns that terms of a module name: the first of each function."""
    found: list[Name] = []
    for term in terms:
        match term:
            case Name():
                found.append(term)
            case Listed(items):
                found += _names(items)
            case Call(_, arguments):
                found += _names(arguments[:1])
    return found


def command_of(arguments: Mapping[str, Any]) -> str:
    """The `shoal train` command of arguments, for a shell."""
    fields = {each.name: each for each in fields_of("train")}
    words = ["shoal train"]
    for name, value in arguments.items():
        text = checked(name, value, kind_of(fields[name]))
        if text is True:
            words.append(flag(name))
        elif text not in ("", False):
            words.append(f"{flag(name)} {shlex.quote(str(text))}")
    return " \\\n    ".join(words)
