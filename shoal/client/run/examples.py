"""The models that come with shoal: `shoal zoo list`.

Owns listing them, from their source: nothing of theirs is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True)
class Example:
    """A model of the zoo.

    data: name of its folder. model_def: for --model-def, below `folder`, which is for
    --model-zoo. about: the first line of the module. engine: that computes with it.
    """

    data: str
    model_def: str
    folder: Path
    about: str
    engine: str = "tensorflow"


_MODELS = {"keras.Model": "tensorflow", "torch.nn.Module": "torch"}
"""Base classes of models -> engine."""


def examples() -> Iterator[Example]:
    """The models of the zoo, by data set and name."""
    spec = find_spec("shoal.model_zoo")
    assert spec is not None
    assert spec.submodule_search_locations
    root = Path(spec.submodule_search_locations[0])
    for path in sorted(root.glob("*/*.py")):
        tree = ast.parse(path.read_text())
        about = (ast.get_docstring(tree) or "").partition("\n")[0]
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == "custom_model":
                yield Example(path.parent.name, f"{path.stem}.custom_model", path.parent, about)
            elif isinstance(node, ast.ClassDef):
                for engine in filter(None, map(_MODELS.get, map(ast.unparse, node.bases))):
                    name = f"{path.stem}.{node.name}"
                    yield Example(path.parent.name, name, path.parent, about, engine)
