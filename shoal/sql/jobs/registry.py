"""Models by name: a folder of files for each.

`DIR/NAME` is a link to `DIR/.NAME.N`, where the model was trained: making the link is the one step
by which a model is there, or takes the place of the one before. A dotted name is in a folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.base.disk.wholefile import sync, write_json, write_text
from shoal.base.words import near
from shoal.client.found.claim import is_locked
from shoal.errors import without_secrets
from shoal.sql.errors import SqlError
from shoal.sql.terms import Name

FORMAT = "shoal-sql-model-1"


@dataclass(frozen=True)
class Model:
    """The record of a model, in model.json.

    algorithm: as the statement names it, or as shoal chose it. module: whether that is a user's.
    arguments: of the functions of the Python API, to predict with it. label: "" where the
    statement of a module names none. plan: the features, as text of plan.py; "" of a module.
    columns: names and types of what the SELECT gave.
    """

    name: str
    algorithm: str
    module: bool
    arguments: dict[str, Any]
    label: str
    plan: str
    columns: dict[str, str]
    attributes: dict[str, Any]
    metrics: dict[str, float | None] = field(default_factory=dict)
    records: int = 0
    created: str = ""
    version: str = ""


class Registry:
    """The models of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        """The names of all models."""
        found = []
        for folder, below, _ in os.walk(self.folder):
            for name in list(below):
                path = Path(folder, name)
                if path.is_symlink() and (path / "model.json").is_file():
                    found.append(".".join(path.relative_to(self.folder).parts))
            below[:] = [name for name in below if not name.startswith(".")]
        return sorted(found)

    def path(self, name: Name) -> Path:
        """The folder of a model, which may not be there. Raises SqlError for a wrong name."""
        parts = name.text.replace(".", "/").split("/")
        if not all(parts):
            raise SqlError(f"{name.text} is no name for a model", name.place)
        return self.folder.joinpath(*parts)

    def find(self, name: Name) -> tuple[Model, Path]:
        """A model and its folder. Raises SqlError where there is none of this name."""
        path = self.path(name)
        try:
            folder = path.parent / path.readlink()
            told = json.loads((folder / "model.json").read_text())
            if told.pop("format") != FORMAT:
                raise ValueError(f"it is not of the format {FORMAT}")
            model = Model(**told)
            if not model.module:  # wherever the folder of models may be by now
                model.arguments["model_zoo"] = str(folder)
            return model, folder
        except OSError as error:
            hint = near(name.text, self.names())
            message = f"there is no model {name.text} in {self.folder}{hint}"
            raise SqlError(message, name.place) from error
        except (ValueError, LookupError, TypeError) as error:
            raise SqlError(f"{path}/model.json cannot be read: {error}", name.place) from error

    @contextlib.contextmanager
    def making(self, name: Name) -> Iterator[Path]:
        """A new folder for a model, which `keep` gives the name; held against other processes.

        Removes what trainings have left that did not come to their end. Raises SqlError.
        """
        path = self.path(name)
        for parent in [path.parent, *path.parent.parents]:
            if parent.is_symlink() and parent.is_relative_to(self.folder) and parent != self.folder:
                raise SqlError(f"{parent.name} is a model, and no folder of models", name.place)
        if path.is_dir() and not path.is_symlink():
            raise SqlError(f"{name.text} is a folder of models: choose another name", name.place)
        path.parent.mkdir(parents=True, exist_ok=True)
        with (path.parent / f".{path.name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                message = f"another process trains {name.text} now: choose another name"
                raise SqlError(message, name.place) from error
            self._tidy(path)
            numbers = [int(each.name.rpartition(".")[2]) for each in self._made(path)]
            folder = path.parent / f".{path.name}.{max(numbers, default=0) + 1}"
            (folder / "given").mkdir(parents=True)
            yield folder

    def keep(self, name: Name, folder: Path, model: Model, statement: str) -> None:
        """Give a folder of `making` its name, as the last step, in place of the one before."""
        path = self.path(name)
        write_text(folder / "statement.sql", without_secrets(statement) + ";\n")
        told = {"format": FORMAT, **dataclasses.asdict(model)}
        write_json(folder / "model.json", json.loads(without_secrets(json.dumps(told))))
        sync(folder)
        link = path.parent / f".{path.name}.link"
        link.unlink(missing_ok=True)
        link.symlink_to(folder.name)
        os.replace(link, path)
        sync(path.parent)
        self._tidy(path)

    def drop(self, name: Name) -> None:
        """Remove a model with its files. Raises SqlError where there is none of this name."""
        self.find(name)
        path = self.path(name)
        path.unlink()
        self._tidy(path)

    def _made(self, path: Path) -> list[Path]:
        """The folders of a name."""
        found = path.parent.glob(f".{path.name}.*")
        return [each for each in found if each.name.rpartition(".")[2].isdigit()]

    def _tidy(self, path: Path) -> None:
        """Remove the folders of a name but the model's own and those whose jobs still run."""
        kept = path.readlink().name if path.is_symlink() else ""
        for folder in self._made(path):
            if folder.name != kept and not is_locked(folder / "job" / "lock"):
                shutil.rmtree(folder, ignore_errors=True)
