"""The user's module: found, imported, checked; its errors told apart from ours.

Owns which functions a module must and may have. What they return is checked where
it is used.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal.base.modules.user_module import (
    MODULE_FUNCTIONS,
    NEEDED,
    OPTIONAL,
    VALUES,
    instead_of_elasticdl,
    missing_functions,
)
from shoal.config.model_params import params_of
from shoal.errors import StorageAwayError, UserCodeError, UserError
from shoal.worker.code.given_values import NAMES, functions_of, is_value
from shoal.worker.code.kept_modules import KeptModules
from shoal.worker.code.of_keras import is_of_keras
from shoal.worker.code.params import with_params
from shoal.worker.engines import engine_name

logger = logging.getLogger(__name__)

TRACED = "in user code:"
"""The beginning of an exception's text after AutoGraph has put the traced lines around it."""


@contextmanager
def user_code(what: str, *, reads: bool = False) -> Iterator[None]:
    """Turn an exception of the body, which runs the user's code, into UserCodeError.

    what: the function and its circumstance, for the message: "loss() of deepfm.py". reads: whether
    the body reads data, so that an OSError may be its storage's.
    """
    try:
        yield
    except (UserCodeError, StorageAwayError, GeneratorExit):
        raise
    except UserError as error:
        if str(error).lstrip().startswith(TRACED):
            raise UserError(summary(error).partition(": ")[2]) from error
        raise
    except BaseException as error:
        # sys.exit() too: it would end a thread, and others would wait for that without end.
        message = f"{what} raised {summary(error)}"
        raise UserCodeError(message, traceback.format_exc(), reads=reads) from error


def as_exception(error: BaseException) -> Exception:
    """Turn an error of a thread's work into an exception to raise in another thread."""
    if isinstance(error, Exception):
        return error
    text = "".join(traceback.format_exception(error))
    made = UserCodeError(f"the code of this job raised {summary(error)}", text)
    made.__cause__ = error
    return made


def summary(error: BaseException) -> str:
    """Type and text of an exception in one line.

    TensorFlow and Keras wrap the texts of exceptions in the code that they trace, and
    put what was raised below several lines of their own.
    """
    name = type(error).__name__
    text = re.sub(r"\x1b\[[\d;]*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines[0].endswith(TRACED):
        # A source line follows each "File" line; below the last one stands the error.
        places = [i for i, line in enumerate(lines) if line.startswith('File "')]
        lines = lines[places[-1] + 2 :] if places else lines[1:]
    if len(lines) > 1 and lines[0].startswith("Exception encountered when calling"):
        del lines[0]
    if lines and lines[0].startswith("Graph execution error"):
        del lines[0]
        # The call stack of the graph's construction comes before the error itself.
        lines = [line for line in lines if not line.startswith(("Detected at", "File ", "[["))][-1:]
    if not lines:
        return name
    line = re.sub(r"^\{\{function_node \S+\}\} ", "", lines[0])
    line = re.sub(r" \[Op:\w+\] name:.*", "", line)
    line = re.sub(r"^Error in user-defined function passed to .*? iterator: \S+: ", "", line)
    inner, colon, rest = line.partition(": ")
    if colon and re.fullmatch(r"\w+(Error|Exception)|SystemExit|KeyboardInterrupt", inner):
        # The type that the user's code raised, not the one that it was wrapped in.
        name, line = inner, rest
    return f"{name}: {line}"


@dataclass(frozen=True)
class UserModule:
    """The functions of a user's module; `path` is its file.

    loss, optimizer: None where only the model's compile() may tell them, until `as_compiled`.
    training_step, scheduler: of a torch.nn.Module, in place of a loss, and for its rate.
    """

    path: Path
    custom_model: Callable[[], Any]
    loss: Any
    optimizer: Any
    feed: Callable[[Any, str, Any], Any] | None
    feed_batch: Callable[[Any, str, Any], Any] | None
    eval_metrics_fn: Callable[[], Any] | None
    custom_data_reader: Callable[..., Any] | None
    prediction_outputs_processor: Callable[[], Any] | None
    callbacks: Callable[[], Any] | None = None
    training_step: Callable[[Any, Any, Any], Any] | None = None
    scheduler: Callable[[Any], Any] | None = None
    loss_weights: Any = None
    class_weight: Any = None

    @property
    def feed_name(self) -> str:
        """The function that makes features of records: feed_batch where there is one."""
        return "feed" if self.feed_batch is None else "feed_batch"

    def describe(self, function: str) -> str:
        """`function` as messages name it."""
        return f"{function}() of {self.path.name}"

    def as_compiled(self, given: Mapping[str, Any]) -> UserModule:
        """The module, with what its model was compiled with in place of a loss that it lacks.

        given: the arguments of its compile() by name; empty if it was not called.
        Raises UserError if there is no loss or optimizer.
        """
        found = self
        if self.loss is None and given.get("loss") is not None:
            if given.get("weighted_metrics"):
                raise UserError(f"{self.path}: weighted_metrics of compile(): make them metrics")
            functions = functions_of(
                loss=given["loss"], eval_metrics_fn=self.eval_metrics_fn or given.get("metrics")
            )
            found = replace(
                found,
                loss=given["loss"],
                loss_weights=self.loss_weights or given.get("loss_weights"),
                eval_metrics_fn=functions["eval_metrics_fn"],
            )
        if self.optimizer is None and given.get("optimizer") is not None:
            found = replace(found, optimizer=lambda: given["optimizer"])
        for name in ("loss", "optimizer"):
            if getattr(found, name) is None:
                raise UserError(
                    f"{self.path} has no {name}, and its model is not compiled with one: {NEEDED}"
                )
        return found

    @property
    def model_name(self) -> str:
        """The function or class that makes the model, as messages name it."""
        return self.describe(getattr(self.custom_model, "__name__", "custom_model"))

    def make_model(self) -> Any:
        """Call custom_model(), or instantiate the class. Raises UserCodeError if it raises."""
        with user_code(self.model_name):
            return self.custom_model()

    def build_model(self) -> Any:
        """A model of Keras, as `make_model` gives it. Raises UserError if it is none."""
        model = self.make_model()
        if not is_of_keras(model, "Model"):
            raise UserError(f"{self.model_name} returned {type(model).__name__}, not a keras.Model")
        return model


def load_module(
    model_zoo: str, model_def: str, model_params: str = "", kept: KeptModules | None = None
) -> UserModule:
    """Import the module of `model_def` (file.function) from the folder `model_zoo`.

    model_params: values for parameters of its functions, as `params_of` reads them. kept: has the
    texts that the job began with, of it and of what it imports; None to import what is there.
    Raises UserError if the file or a function is missing, the file is not Python or no function
    takes a value; UserCodeError if importing it raises.
    """
    *folders, function = model_def.replace("/", ".").split(".")
    path = Path(model_zoo, *folders).with_suffix(".py")
    if not path.is_file() and not (kept and kept.has(path)):
        raise UserError(f"--model-def {model_def}: there is no file {path}")
    if kept is not None:
        kept.install()
    module = _import(path, ".".join(folders), model_zoo, kept)

    def find(name: str) -> Any:
        found = getattr(module, name, None)
        value = is_value(name, found)
        if found is not None and not callable(found) and not value:
            raise UserError(f"{name} in {path} must be a function, not {type(found).__name__}")
        return found

    if find(function) is None:
        raise UserError(f"--model-def {model_def}: {path} has no function or class {function!r}")
    defined = [name for name in (*MODULE_FUNCTIONS, *OPTIONAL) if find(name) is not None]
    # What custom_model() may compile its model with is asked for when it is called.
    if "feed" in missing_functions(defined):
        raise UserError(f"{path} has no function feed(): {NEEDED}")
    found = UserModule(
        path,
        find(function),
        *(find(name) for name in MODULE_FUNCTIONS),
        *(find(name) for name in OPTIONAL),
    )
    _check_engine(found)
    values: dict[str, Any] = {name: getattr(module, name, None) for name in VALUES}
    with user_code(f"reading {path}"):
        values |= functions_of(**{name: getattr(found, name) for name in NAMES})
    found = replace(found, **values)
    return with_params(found, params_of(model_params))


def _check_engine(module: UserModule) -> None:
    """Raises UserError for a class of PyTorch's modules that another engine is to train."""
    torch, kind = sys.modules.get("torch"), module.custom_model
    if torch is None or engine_name() == "torch" or not isinstance(kind, type):
        return
    # With Keras on PyTorch, its models are modules, too.
    if issubclass(kind, torch.nn.Module) and not kind.__mro__[1].__module__.startswith("keras."):
        raise UserError(
            f"{module.path}: {kind.__name__} is a torch.nn.Module, and the job computes with "
            f"{engine_name()}: give --engine torch, or import torch in the module itself"
        )


def _import(path: Path, name: str, model_zoo: str, kept: KeptModules | None) -> ModuleType:
    # The module may import its neighbours, by a path from the zoo or by bare name.
    for folder in (str(path.parent), str(Path(model_zoo))):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    if kept is not None:
        spec = kept.by_kept_text(spec)
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Keras finds the classes of a saved model by their module's name.
    sys.modules.setdefault(name, module)
    try:
        with user_code(f"importing {path}"):
            spec.loader.exec_module(module)
    except UserCodeError as error:
        if isinstance(error.__cause__, ModuleNotFoundError) and (
            instead := instead_of_elasticdl(error.__cause__.name or "")
        ):
            raise UserError(f"{path}: {instead}") from error
        if isinstance(error.__cause__, SyntaxError) and error.__cause__.filename == str(path):
            cause = error.__cause__
            raise UserError(
                f"{path}, line {cause.lineno}: {cause.msg}: {(cause.text or '').strip()}"
            ) from cause
        raise
    return module
