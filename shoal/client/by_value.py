"""A model that a Python program gives by value becomes a module that workers load.

Owns what may be given, and the writing. What workers make of it is worker/code/by_value.py's, the
form base/modules/by_value.py's. An object of Keras exists only where its owner has imported Keras,
so nothing here imports it.
"""

from __future__ import annotations

import io
import linecache
import os
import pickle
import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import CodeType
from typing import Any, ClassVar

from shoal.base.modules.by_value import (
    MODEL,
    MODULE,
    PICKLE,
    GivenModule,
    GivenOptimizer,
    Kept,
    MadeOf,
    Parts,
    classes_of,
    named_code,
    python_version,
)
from shoal.base.modules.engines import AUTO, VARIABLE, checked_backend, of_keras
from shoal.base.modules.user_module import VALUES, optimizer_by_name
from shoal.config.signatures import BY_VALUE
from shoal.errors import UserError

NAMES = tuple(name for name in BY_VALUE if name != "validation_split")
"""The arguments that are given by value."""

_HEAD = '''"""The model that a Python program gave by value, as shoal wrote it for workers."""

from pathlib import Path

from shoal.worker.code.by_value import load

_given = load(Path(__file__).parent)

'''

_OF_KERAS = ("losses.Loss", "optimizers.Optimizer", "metrics.Metric")
"""Classes whose objects are given by their configuration."""


def write_model(folder: Path, given: Mapping[str, Any]) -> None:
    """Write the module of a model into a folder.

    given: arguments of `NAMES`, without those that are None. Raises UserError that names the
    argument which is missing, of a wrong kind, or cannot be given by value.
    """
    parts = _parts(given, folder)
    folder.joinpath(PICKLE).write_bytes(_pickled(parts))
    defined = ["custom_model", "loss", "optimizer"]
    defined += ["feed"] if parts.feed is not None else ["feed_batch"]
    defined += [name for name in VALUES if getattr(parts, name) is not None]
    measured = parts.metrics is not None or parts.metrics_of_compile is not None
    defined += ["eval_metrics_fn"] * measured
    for name in ("callbacks", "training_step", "scheduler"):
        defined += [name] * (getattr(parts, name) is not None)
    lines = [f'{name} = _given["{name}"]\n' for name in defined]
    folder.joinpath(MODULE).write_text(_HEAD + "".join(lines))


def engine_of(given: Mapping[str, Any], wanted: str) -> str:
    """The engine of a model that is given by value: the one that this program has loaded for it.

    given: as for `write_model`. wanted: the engine that is asked for, or auto. Raises UserError if
    the program's Keras has another backend, or one that trains nothing.
    """
    model, keras = given.get("model"), sys.modules.get("keras")
    torch = sys.modules.get("torch")
    if _is_module(model):
        if wanted not in (AUTO, "torch"):
            raise UserError(f"--engine {wanted}: model is a torch.nn.Module, which torch trains")
        return "torch"
    if keras is None or (wanted == "torch" and torch is not None and not _is_keras(model)):
        # A function: what it makes is not known, but by what is loaded.
        loaded = [name for name in ("torch", "jax") if name in sys.modules]
        return next(iter(loaded), of_keras()) if wanted == AUTO else wanted
    found = checked_backend(keras.backend.backend(), "this program")
    if wanted not in (AUTO, found):
        raise UserError(
            f"--engine {wanted}: Keras was imported with {found} in this program, and model is of "
            f"it: set {VARIABLE}={wanted} before Keras is imported, or leave engine out"
        )
    return found


def _is_module(model: Any) -> bool:
    """True for a torch.nn.Module that is no model of Keras, or a class of such ones."""
    torch = sys.modules.get("torch")
    if torch is None or _is_keras(model):
        return False
    kind = model if isinstance(model, type) else type(model)
    return issubclass(kind, torch.nn.Module)


def _is_keras(model: Any) -> bool:
    """True for a model of Keras, or a class of such ones."""
    kind = getattr(sys.modules.get("keras"), "Model", None)
    if kind is None:
        return False
    return isinstance(model, kind) or (isinstance(model, type) and issubclass(model, kind))


def _parts(given: Mapping[str, Any], folder: Path) -> Parts:
    if "model" not in given:
        raise UserError(f"{min(given)} is given by value, and model is not: give model, too")
    model = given["model"]
    values = {name: given.get(name) for name in NAMES}
    configs: list[Any] = []
    of_compile = None
    if _is(model, "Model"):
        values |= {"model": None}
        if model.compiled:
            values, of_compile = _with_compiled(model, values)
        configs += [_config_of(model), of_compile]
        _save(model, folder / MODEL)
    elif _is_module(model) and not isinstance(model, type):
        values |= {"model": GivenModule(model)}
    elif not callable(model):
        raise UserError(
            f"model must be a keras.Model or torch.nn.Module, or a function or class that gives "
            f"one, not {_kind(model)}"
        )
    if _of_torch(values["optimizer"]):
        values |= {"optimizer": _given_optimizer(values["optimizer"])}
    _check(values)
    portable = {name: _portable(value, configs) for name, value in values.items()}
    # A class or function that only a configuration names would not come along.
    custom: dict[str, Any] = dict(classes_of(model)) if values["model"] is None else {}
    for config in configs:
        custom |= dict(_named_in(config))
    return Parts(**portable, metrics_of_compile=of_compile, custom_objects=custom)


def _with_compiled(model: Any, given: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Fill in the loss, optimizer and loss weights that are not given, as the model was compiled.

    Returns them, and the model's serialised metrics; None if metrics were given. Raises UserError.
    """
    try:
        compiled = model.get_compile_config() or {}
    except Exception as error:  # of Keras, about objects of the user's
        raise UserError(
            f"model: what it was compiled with cannot be serialised ({error}); give loss, "
            "optimizer and metrics as arguments"
        ) from error
    if compiled.get("weighted_metrics"):
        raise UserError("model: weighted_metrics are not supported; give them as metrics")
    found = dict(given)
    for name, value in (
        ("loss", model.loss),
        ("optimizer", model.optimizer),
        ("loss_weights", compiled.get("loss_weights")),
    ):
        if found[name] is None:
            found[name] = value
    return found, compiled.get("metrics") if given["metrics"] is None else None


def _check(values: Mapping[str, Any]) -> None:
    """Raises UserError for an argument that is missing or of a wrong kind."""
    module = isinstance(values["model"], GivenModule)
    for name in ("loss", "optimizer"):
        # A function may compile the model that it makes.
        if values[name] is None and (values["model"] is None or module):
            if name == "loss" and values["training_step"] is not None:
                continue
            instead = "training_step" if name == "loss" else "a function of the parameters"
            instead = instead if module else "a compiled model"
            raise UserError(f"{name} is missing: give the argument {name}, or {instead}")
    for name in ("feed", "feed_batch", "training_step", "scheduler"):
        if values[name] is not None and not callable(values[name]):
            raise UserError(f"{name} must be a function, not {_kind(values[name])}")
    optimizer = values["optimizer"]
    if optimizer is not None and not callable(optimizer):
        for each in optimizer.values() if isinstance(optimizer, Mapping) else [optimizer]:
            if isinstance(each, str) and (module or _is_module(values["model"])):
                raise UserError(optimizer_by_name(each))
            if not (isinstance(each, str) or _is(each, _OF_KERAS[1])):
                raise UserError(
                    "optimizer must be an optimizer of Keras or torch.optim, its name in Keras, a "
                    "dict of these by table name, or a function that gives one of these, not "
                    f"{_kind(each)}"
                )
    for name, part in (("label", "labels"), ("sample_weight", "weights")):
        if (value := values[name]) is None:
            continue
        if not isinstance(value, str):
            raise UserError(f"{name} must be the name of a column, not {_kind(value)}")
        if (values["feed"] or values["feed_batch"]) is not None:
            raise UserError(f"{name} is for a job without feed, which chooses the {part} itself")


def _of_torch(optimizer: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(optimizer, torch.optim.Optimizer)


def _given_optimizer(optimizer: Any) -> GivenOptimizer:
    """Raises UserError for one whose parameters are in groups with options of their own."""
    first, *others = (
        {name: value for name, value in group.items() if name in optimizer.defaults}
        for group in optimizer.param_groups
    )
    if any(group != first for group in others):
        raise UserError(
            f"optimizer has {1 + len(others)} groups of parameters with options of their own: give "
            "a function, optimizer=lambda parameters: ..., which gives a dict of optimizers by "
            "table name"
        )
    return GivenOptimizer(type(optimizer), first)


def _kind(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _is(value: Any, name: str) -> bool:
    """True if a value is an object of a class of Keras, such as losses.Loss."""
    found: Any = sys.modules.get("keras")
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is not None and isinstance(value, found)


def _portable(value: Any, configs: list[Any]) -> Any:
    """A value with its objects of Keras by configuration; adds these to `configs`."""
    if any(_is(value, name) for name in _OF_KERAS):
        configs.append(config := _config_of(value))
        return MadeOf(type(value), config)
    if isinstance(value, Mapping):
        return {name: _portable(each, configs) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_portable(each, configs) for each in value]
    return value


def _config_of(value: Any) -> Any:
    try:
        return value.get_config()
    except Exception as error:  # NotImplementedError, and what else a class of the user's raises
        raise UserError(
            f"the configuration of {_kind(value)} cannot be had ({error}); give a function that "
            "makes it, such as model=build_model"
        ) from error


def _named_in(config: Any) -> Iterator[tuple[str, Any]]:
    """Classes and functions that are not Keras's, by the name that it looks them up by.

    Raises UserError for a function that is not to be found.
    """
    if isinstance(config, Mapping):
        name, module = config.get("class_name"), config.get("module")
        function = name == "function" and module == "builtins"
        if function or ("class_name" in config and module is None):
            # Keras keeps no more of it than its name: it is the program's own, or a layer's class.
            name, module = str(config["config"] if function else name), "__main__"
        found = getattr(sys.modules.get(str(module)), str(name), None)
        if function and found is None:
            raise UserError(
                f"model was compiled with the function {name}, of which Keras keeps the name only: "
                "give metrics as an argument"
            )
        if found is not None and str(module).partition(".")[0] not in ("keras", "builtins"):
            yield str(name if function else config.get("registered_name") or name), found
        for each in config.values():
            yield from _named_in(each)
    elif isinstance(config, list | tuple):
        for each in config:
            yield from _named_in(each)


def _save(model: Any, path: Path) -> None:
    try:
        model.save(path)
    except OSError:
        raise
    except Exception as error:  # of Keras, about layers of the user's
        raise UserError(
            f"model cannot be saved by Keras ({error}); give a function that makes it, such as "
            "model=build_model"
        ) from error


def _pickled(parts: Parts) -> bytes:
    """The content of `PICKLE`. Raises UserError naming the argument that cannot be pickled."""
    try:
        import cloudpickle
    except ImportError as error:
        raise UserError(
            "a model that is given by value needs the package cloudpickle; install it with: "
            "pip install cloudpickle"
        ) from error
    try:
        text = _by_value(cloudpickle, parts)
    except Exception:
        for each in fields(parts):
            _try_one(cloudpickle, each.name, getattr(parts, each.name))
        raise
    kept = Kept(text, python_version(), [os.path.abspath(each) for each in sys.path], _sources())
    return pickle.dumps(kept)


def _by_value(cloudpickle: Any, value: Any) -> bytes:
    """The pickle of a value whose functions keep the names of their files.

    AutoGraph reads the text of a function there, and tracebacks show it. cloudpickle leaves the
    name out from 3.1.3 on.
    """
    known = cloudpickle.Pickler.dispatch_table

    def reduced(code: CodeType) -> tuple[Any, ...]:
        make, parts = known[CodeType](code)
        return named_code, (code.co_filename, make, parts)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        # The table of an instance comes too late: pickle reads it as the instance is made.
        dispatch_table: ClassVar = ChainMap({CodeType: reduced}, known)

    file = io.BytesIO()
    Pickler(file).dump(value)
    return file.getvalue()


def _try_one(cloudpickle: Any, name: str, value: Any) -> None:
    try:
        _by_value(cloudpickle, value)
    except Exception as error:
        raise UserError(
            f"{name} cannot be given by value: {error}. A function takes the objects with it that "
            "it names: make such an object in the function, or keep it in a module"
        ) from error


def _sources() -> dict[str, str]:
    """The text of notebook cells and the like, which is in no file of workers."""
    return {
        name: "".join(entry[2])
        for name, entry in linecache.cache.items()
        # What was typed has no time of change.
        if len(entry) == 4 and entry[1] is None
    }
