"""The magics %shoal and %%shoal of notebooks: statements in a cell, answered by a DataFrame."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

from shoal.errors import UserError
from shoal.sql.databases.database import opened
from shoal.sql.databases.engine import Answer
from shoal.sql.errors import SqlError
from shoal.sql.jobs.registry import Registry
from shoal.sql.jobs.run import Session

USAGE = "the line of %%shoal is: [--database FILE|URL] [--models FOLDER] [--into VARIABLE]"


class Magics:
    """The magics of one shell; database and folder stay as the last cell named them."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._database = ""
        self._models = os.environ.get("SHOAL_MODELS", "shoal-models")
        self._session: Session | None = None

    def register(self) -> None:
        """Make the magics known to the shell."""
        self._shell.register_magic_function(self.line, "line", "shoal")
        self._shell.register_magic_function(self.cell, "cell", "shoal")

    def line(self, line: str) -> Any:
        """%shoal SELECT ...: statements of one line, or options alone."""
        if line.lstrip().startswith("--") or not line.strip():
            return self.cell(line, "")
        return self._run(line)

    def cell(self, line: str, cell: str) -> Any:
        """%%shoal [options]: the statements of a cell; returns the last answer, if there is one.

        --into gives it to a variable instead. DataFrames of the notebook are tables for DuckDB.
        """
        options = self._options(line)
        into = options.pop("into", "")
        if options:
            self._database = options.get("database", self._database)
            self._models = options.get("models", self._models)
            self._session = None
        answer = self._run(cell)
        if not into:
            return answer
        self._shell.push({into: answer})
        return None

    def _options(self, line: str) -> dict[str, str]:
        words = shlex.split(line)
        found = dict(zip(words[::2], words[1::2], strict=False))
        if len(words) % 2 or not found.keys() <= {"--database", "--models", "--into"}:
            raise UserError(USAGE)
        return {name.removeprefix("--"): value for name, value in found.items()}

    def _run(self, text: str) -> Any:
        if self._session is None:
            engine = opened(self._database, lambda: self._shell.user_ns)
            self._session = Session(engine, Registry(Path(self._models).absolute()), print)
        answers: list[Any] = []

        def keep(answer: Answer) -> None:
            # At once, as a later statement may change the table.
            answers.append(answer.frame())

        try:
            self._session.run(text, keep)
        except SqlError as error:
            raise UserError(error.explained(text)) from None
        return answers[-1] if answers else None
