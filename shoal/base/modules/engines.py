"""The engines, and the one that a user's module asks for by what it imports.

An engine is the framework that computes with a model. Imports none of them: the client looks at
the module's text, and so does a worker in a pod, whose module the client has not.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import UserError

AUTO = "auto"

VARIABLE = "KERAS_BACKEND"
"""Keras reads it when it is imported. Engines have the names of Keras's backends."""


@dataclass(frozen=True)
class Framework:
    """A framework. words: its name and oldest version. distributions: any of them has it.

    extra: of shoal. modules: of its own and of those that stand on it, as a module imports them.
    """

    words: str
    extra: str
    distributions: tuple[str, ...]
    modules: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its name."""
        return self.words.partition(" ")[0]

    @property
    def install(self) -> str:
        """The command that installs it."""
        return f"pip install 'shoal[{self.extra}]'"

    def missing(self, who: str, error: ImportError) -> str:
        """The message that `who` cannot import it."""
        return (
            f"{who} {self.words}, which cannot be imported ({error}); install it with: "
            f"{self.install}"
        )


FRAMEWORKS = {
    "tensorflow": Framework(
        "TensorFlow 2.16 or newer", "cpu", ("tensorflow", "tensorflow-cpu"), ("tensorflow",)
    ),
    "jax": Framework("JAX 0.10", "jax", ("jax",), ("jax", "flax", "haiku")),
    "torch": Framework("PyTorch 2.13", "torch", ("torch",), ("torch", "shoal.torch")),
}
"""The frameworks by the name of their engine."""


def asked_for(path: Path) -> str:
    """The engine that the module at a path asks for.

    By its imports; where these name none, by Keras's own configuration, which is that of this
    process. A file that is missing or no Python names none. Raises UserError if it names two.
    """
    try:
        found = list(_named_by(ast.parse(path.read_bytes()).body))
    except (OSError, SyntaxError, ValueError):
        found = []
    places: dict[str, str] = {}
    for name, line, text in found:
        places.setdefault(name, f"{name} in line {line} ({text})")
    if len(places) > 1:
        raise UserError(
            f"--engine: {path} names {' and '.join(places.values())}, and one of them computes "
            f"with the model: give --engine {' or --engine '.join(places)}, or remove the other"
        )
    return next(iter(places), None) or of_keras()


def of_keras() -> str:
    """The backend that Keras would have if this process imported it now.

    Raises UserError if it is no engine.
    """
    # Not Path.home(), which raises for a user without a name, as pods may have.
    home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    path = Path(home, "keras.json")
    if name := os.environ.get(VARIABLE):
        return checked_backend(name, f"the variable {VARIABLE}")
    try:
        name = json.loads(path.read_text()).get("backend")
    except (OSError, ValueError, AttributeError):
        name = None
    return checked_backend(name, str(path)) if name else "tensorflow"


def checked_backend(name: str, where: str) -> str:
    """A backend of Keras, if it is an engine. where: what names it. Raises UserError for others."""
    if name not in FRAMEWORKS:
        raise UserError(
            f"--engine: {where} names Keras's backend {name}, which trains nothing; the engines "
            f"are {', '.join(FRAMEWORKS)}"
        )
    return name


def _named_by(statements: list[ast.stmt]) -> Iterator[tuple[str, int, str]]:
    """For each statement that names a framework: the engine, its line and its text."""
    for node in statements:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from _named_by(node.orelse)
            continue
        for name in _names(node):
            yield name, node.lineno, ast.unparse(node)
        for part in ("body", "orelse", "finalbody"):
            yield from _named_by(getattr(node, part, []))
        for handler in getattr(node, "handlers", []):
            yield from _named_by(handler.body)


def _names(node: ast.stmt) -> Iterator[str]:
    """The engines that a statement names, without those in it."""
    imported = []
    if isinstance(node, ast.Import):
        imported = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and not node.level:
        # `from shoal import torch` imports what `import shoal.torch` does.
        imported = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
        targets = [ast.unparse(each) for each in node.targets]
        if f"os.environ['{VARIABLE}']" in targets and node.value.value in FRAMEWORKS:
            yield node.value.value
    for engine, framework in FRAMEWORKS.items():
        known = framework.modules
        if any(f"{each}.".startswith(f"{module}.") for each in imported for module in known):
            yield engine
