"""The user's module: found, imported, checked; its errors told apart from ours.

Owns which functions a module must and may have. What they return is checked where
it is used.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import keras

from shoal.errors import UserCodeError, UserError

logger = logging.getLogger(__name__)

REQUIRED = ("loss", "optimizer", "feed")
OPTIONAL = ("eval_metrics_fn", "custom_data_reader", "PredictionOutputsProcessor")


@contextmanager
def user_code(what: str) -> Iterator[None]:
    """Turn an exception of the body, which runs the user's code, into UserCodeError.

    what: the function and its circumstance, for the message: "loss() of deepfm.py".
    """
    try:
        yield
    except (UserError, UserCodeError):
        raise
    except Exception as error:
        lines = str(error).strip().splitlines()
        summary = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        raise UserCodeError(f"{what} raised {summary}", traceback.format_exc()) from error


@dataclass(frozen=True)
class UserModule:
    """The functions of a user's module; `path` is its file."""

    path: Path
    custom_model: Callable[[], Any]
    loss: Callable[[Any, Any], Any]
    optimizer: Callable[[], Any]
    feed: Callable[[Any, str, Any], Any]
    eval_metrics_fn: Callable[[], Any] | None
    custom_data_reader: Callable[..., Any] | None
    prediction_outputs_processor: Callable[[], Any] | None

    def describe(self, function: str) -> str:
        """`function` as messages name it."""
        return f"{function}() of {self.path.name}"

    def build_model(self) -> Any:
        """Call custom_model(), or instantiate the model class.

        Raises UserError if the result is no Keras model, UserCodeError if it raises.
        """
        name = getattr(self.custom_model, "__name__", "custom_model")
        with user_code(self.describe(name)):
            model = self.custom_model()
        if not isinstance(model, keras.Model):
            raise UserError(
                f"{self.describe(name)} returned {type(model).__name__}, not a keras.Model"
            )
        return model


def load_module(model_zoo: str, model_def: str) -> UserModule:
    """Import the module of `model_def` (file.function) from the folder `model_zoo`.

    Raises UserError if the file or a function is missing or the file is not Python,
    UserCodeError if importing it raises.
    """
    *folders, function = model_def.replace("/", ".").split(".")
    path = Path(model_zoo, *folders).with_suffix(".py")
    if not path.is_file():
        raise UserError(f"--model-def {model_def}: there is no file {path}")
    module = _import(path, ".".join(folders), model_zoo)

    def find(name: str) -> Any:
        found = getattr(module, name, None)
        if found is not None and not callable(found):
            raise UserError(f"{name} in {path} must be a function, not {type(found).__name__}")
        return found

    if find(function) is None:
        raise UserError(f"--model-def {model_def}: {path} has no function or class {function!r}")
    for name in REQUIRED:
        if find(name) is None:
            raise UserError(
                f"{path} has no function {name}(): a model module needs "
                f"{', '.join(REQUIRED)} beside {function}"
            )
    if find("callbacks") is not None:
        logger.warning("%s: callbacks() is not called in this version", path.name)
    return UserModule(
        path,
        find(function),
        *(find(name) for name in REQUIRED),
        *(find(name) for name in OPTIONAL),
    )


def _import(path: Path, name: str, model_zoo: str) -> ModuleType:
    # The module may import its neighbours, by a path from the zoo or by bare name.
    for folder in (str(path.parent), str(Path(model_zoo))):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Keras finds the classes of a saved model by their module's name.
    sys.modules.setdefault(name, module)
    try:
        with user_code(f"importing {path}"):
            spec.loader.exec_module(module)
    except UserCodeError as error:
        if isinstance(error.__cause__, SyntaxError) and error.__cause__.filename == str(path):
            cause = error.__cause__
            raise UserError(
                f"{path}, line {cause.lineno}: {cause.msg}: {(cause.text or '').strip()}"
            ) from cause
        raise
    return module
