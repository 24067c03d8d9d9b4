"""Checks of a statement before its job, and the error of a job that failed."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator

from shoal.base.words import near_or_all
from shoal.errors import StorageError, UserCodeError, UserError
from shoal.result import JobFailedError
from shoal.sql.clause import Clause
from shoal.sql.databases.engine import Saved
from shoal.sql.errors import SqlError
from shoal.sql.jobs.registry import Model
from shoal.sql.models.plan import Plan
from shoal.sql.terms import Place


def check_label(model: Model, clause: Clause) -> None:
    """Raise SqlError for a LABEL that is not the model's."""
    if clause.label is not None and model.label and clause.label.text != model.label:
        raise SqlError(
            f"the label of {model.name} is {model.label}: SELECT {clause.label.text} AS "
            f"{model.label}",
            clause.label.place,
        )


def check_columns(model: Model, data: Saved, clause: Clause, *, label: bool = False) -> None:
    """Raise SqlError for a column that a model needs, and the SELECT does not give.

    label: its label is needed, too.
    """
    needed = {} if model.module else dict(Plan.from_json(model.plan).types)
    if not label:
        needed.pop(model.label, None)
    names = data.schema.names
    for name, kind in needed.items():
        if name not in names:
            raise SqlError(
                f"model {model.name} needs the column {name}, which the SELECT does not give"
                f"{near_or_all(name, names)}",
                clause.select_place,
            )
        given = str(data.schema.field(name).type)
        if given != kind and "string" in (given, kind):
            raise SqlError(
                f"column {name} is {given}, and model {model.name} learned it as {kind}: CAST it",
                clause.select_place,
            )


@contextlib.contextmanager
def reported(place: Place) -> Iterator[None]:
    """A context in which errors of jobs and files become one of a statement."""
    try:
        yield
    except SqlError as error:
        if error.place is None:
            raise SqlError(error.message, place) from error
        raise
    except JobFailedError as error:
        raise SqlError(f"the job has not succeeded: {error.message}", place) from error
    except subprocess.CalledProcessError as error:
        if error.returncode == -signal.SIGINT:  # Ctrl-C goes to all processes of a terminal
            raise KeyboardInterrupt from error
        raise
    except (UserError, StorageError, UserCodeError) as error:
        raise SqlError(str(error), place) from error
    except BrokenPipeError:  # of the output, whose reader has seen enough
        raise
    except OSError as error:
        raise SqlError(f"{error.filename or 'a file'}: {error.strerror or error}", place) from error
