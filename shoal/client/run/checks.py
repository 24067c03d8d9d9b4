"""The checks that run before anything is started.

They look at paths and files only, and do not import the user's module: the workers
do, which have TensorFlow. Every check raises UserError naming the flag.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import shoal
from shoal.base.modules.user_module import (
    MODULE_FUNCTIONS,
    NEEDED,
    OPTIONAL,
    instead_of_elasticdl,
    missing_functions,
)
from shoal.base.words import near
from shoal.config.flags import flag
from shoal.config.groups.data_format import CSV_FIELDS, FIELDS
from shoal.config.groups.event_time import FLAG, EventTime
from shoal.config.job import JobConfig
from shoal.config.model_params import GIVEN, params_of, refusal
from shoal.config.url_variables import check_variables
from shoal.errors import UserError

KERAS_OPTIMIZERS = (
    *("SGD", "Adagrad", "RMSprop", "Adam", "AdamW", "Ftrl"),
    *("Adadelta", "Adamax", "Nadam", "Lion", "Lamb", "Muon", "Adafactor"),
)
"""Names of Keras's optimizers, those that servers have and others."""

FOLDERS = ("job_dir", "index_dir", "checkpoint_dir", "tensorboard_dir", "publish")
"""Where a job writes, beside --output."""

DATA_FIELDS = ("training_data", "validation_data", "prediction_data")


def check_folder() -> None:
    """Raise UserError if the job's processes would not find shoal from the working directory."""
    here = Path("shoal", "__init__.py")
    if here.is_file() and not here.samefile(shoal.__file__):
        raise UserError(
            f"{Path.cwd()} has a folder shoal/, which Python would take for the package: work in "
            "another folder. In a clone of shoal's source code, make demo builds it there"
        )


def check_inputs(config: JobConfig) -> list[str]:
    """The model file and the data that a job reads.

    config: resolved. Gives what is likely a mistake, but may be meant, in words. Raises
    UserError.
    """
    from shoal.seed.pool import named_folder  # late: --help needs none of it

    check_folder()
    _check_folders(config)
    named_folder()
    check_variables(config)
    names = check_model(config)
    # The user's reader may take what is no path at all.
    if names is None or "custom_data_reader" in names:
        if names and (given := _given(config, FIELDS)):
            raise UserError(
                f"{given[0]}: {config.model_def} has a custom_data_reader, which this flag does "
                "not reach: set the format there, and remove the flag"
            )
        return []
    return check_data(config)


def _check_folders(config: JobConfig) -> None:
    """Refuse files, and what would be below one, where the job makes folders."""
    for name in FOLDERS:
        path = Path(getattr(config, name))
        there = next((each for each in (path, *path.parents) if each.exists()), path)
        if there.exists() and not there.is_dir():
            raise UserError(f"{flag(name)}: {there} is a file; a folder is expected")


def check_model(config: JobConfig) -> set[str] | None:
    """The names that the model file defines at its top level; None if it cannot be told.

    Raises UserError if there is no such file, it is not Python, or lacks the model or
    another function that it must have.
    """
    *module, name = config.model_def.replace("/", ".").split(".")
    zoo = Path(config.model_zoo)
    path = zoo.joinpath(*module).with_suffix(".py")
    if not zoo.is_dir():
        raise UserError(f"--model-zoo: there is no folder {zoo}")
    if not path.is_file():
        known = sorted(
            ".".join(file.relative_to(zoo).with_suffix("").parts) for file in _modules(zoo)
        )
        hint = near(".".join(module), known)
        if path.with_suffix("").is_dir():
            hint = f"; {path.with_suffix('')} is a folder: name the file in it that has the model"
        raise UserError(f"--model-def: there is no file {path}{hint}")
    if len(module) == 1 and module[0] in sys.stdlib_module_names:
        raise UserError(
            f"--model-def: libraries would import {path} in the place of Python's own module "
            f"{module[0]}: rename the file"
        )
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        text = (getattr(error, "text", None) or "").strip()
        raise UserError(
            f"--model-def: {path} is not valid Python"
            + (f": line {line}: {error.args[0]}" if line else f": {error}")
            + (f": {text}" if text else "")
        ) from error
    _check_imports(tree, path)
    names = _top_level_names(tree)
    if names is not None and name not in names:
        raise UserError(f"--model-def: {path} defines no {name}{near(name, sorted(names))}")
    missing = [] if names is None else missing_functions(names)
    if any(isinstance(each, ast.Attribute) and each.attr == "compile" for each in ast.walk(tree)):
        missing = [each for each in missing if each == "feed"]
    if missing:
        raise UserError(f"--model-def: {path} has no function {missing[0]}(): {NEEDED}")
    _check_optimizer(tree, path)
    _check_params(tree, path, {name, *MODULE_FUNCTIONS, *OPTIONAL} & (names or set()), config)
    return names


def _check_imports(tree: ast.Module, path: Path) -> None:
    """Refuse an import of ElasticDL's packages at the top level, where they are not installed."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for module in modules:
            instead = instead_of_elasticdl(module)
            if instead and importlib.util.find_spec(module.partition(".")[0]) is None:
                raise UserError(f"--model-def: {path}, line {node.lineno}: {instead}")


def _check_optimizer(tree: ast.Module, path: Path) -> None:
    """Refuse what optimizer() returns, where the source alone tells that servers lack it.

    The first worker looks at the optimizer itself, before anything is trained.
    """
    # Late, as only jobs need NumPy.
    from shoal.native.optimizers import OptimizerSpec

    functions = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "optimizer"
    ]
    nodes = [node for each in functions for node in ast.walk(each)]
    returned = [node for node in nodes if isinstance(node, ast.Return)]
    if len(returned) != 1 or not isinstance(call := returned[0].value, ast.Call):
        return
    named = ast.unparse(call.func)
    kind = named.rpartition(".")[2]
    if kind not in KERAS_OPTIMIZERS or not (named == kind or "optimizers." in named):
        return
    options = {
        each.arg: each.value.value
        for each in call.keywords
        if each.arg in OptimizerSpec.UNSUPPORTED and isinstance(each.value, ast.Constant)
    }
    try:
        OptimizerSpec.from_keras(kind, options)
    except ValueError as error:
        raise UserError(f"--model-def: {path}, line {call.lineno}: optimizer(): {error}") from error


def _check_params(tree: ast.Module, path: Path, functions: set[str], config: JobConfig) -> None:
    """Refuse a value of --model-params that nobody takes, where the source alone tells.

    functions: those of the model's module, by name. A worker looks at the functions themselves.
    """
    params = params_of(config.model_params)
    defined = {each.name: each for each in tree.body if isinstance(each, _DEFINITION)}
    known: set[str] = set()
    for name in functions if params else ():
        found = _parameters(defined.get(name), GIVEN.get(name, 0))
        if found is None:
            return
        known |= found
    for name in params if functions else ():
        if name not in known:
            raise refusal(path.name, name, known)


_DEFINITION = ast.FunctionDef | ast.ClassDef


def _parameters(node: _DEFINITION | None, given: int) -> set[str] | None:
    """The parameters of a function or of a class's __init__ beyond those given; None: not known."""
    if isinstance(node, ast.ClassDef):
        made = [e for e in node.body if isinstance(e, ast.FunctionDef) and e.name == "__init__"]
        return _parameters_of(made[0], given + 1) if made and not node.decorator_list else None
    if node is None or node.args.kwarg is not None:
        return None
    return _parameters_of(node, given)


def _parameters_of(node: ast.FunctionDef, given: int) -> set[str] | None:
    if node.decorator_list:
        return None
    by_keyword = node.args.args[max(0, given - len(node.args.posonlyargs)) :]
    return {each.arg for each in [*by_keyword, *node.args.kwonlyargs]}


def _modules(zoo: Path) -> list[Path]:
    """Python files below a folder, at most some folders deep: it may be a home folder."""
    return [file for depth in ("*.py", "*/*.py", "*/*/*.py") for file in zoo.glob(depth)]


def _top_level_names(tree: ast.Module) -> set[str] | None:
    """The names that the module's code binds; None if only running it would tell."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if alias.name == "*":
                    return None
                names.add((alias.asname or alias.name).split(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def check_data(config: JobConfig) -> list[str]:
    """The data can be found and opened, and files read together fit together.

    Gives what is likely a mistake in them, in words. Raises UserError naming the flag.
    """
    # Late, as only jobs need Arrow: not --help, nor a flag spelled wrongly.
    from shoal.data.opening import open_reader, reads_csv
    from shoal.data.reader import check_columns

    csv = False
    doubts: list[str] = []
    columns: dict[str, list[str]] = {}
    for name in DATA_FIELDS:
        if pattern := getattr(config, name):
            try:
                reader = open_reader(pattern, flag(name), data_format=config.format_of_data)
                if name == "training_data" and config.arriving:
                    reader.grows()
                csv = csv or reads_csv(reader)
                # Not sources(), which reads whole CSV files; the workers count.
                columns[name] = reader.schema().names
                if name == "training_data" and (time := EventTime.parse(config.event_time)):
                    time.check_unit(columns[name])
                    check_columns(reader.schema(), [time.column], FLAG, reader.names()[0])
                doubts += [f"{flag(name)}: {each}" for each in reader.doubts()]
            except UserError as error:
                if str(error).startswith((flag(name), FLAG)):
                    raise
                raise UserError(f"{flag(name)}: {error}") from error
    if not csv and (given := _given(config, CSV_FIELDS)):
        raise UserError(f"{given[0]} is for CSV files, and the data has none")
    return doubts + _lacking(config, columns)


def _given(config: JobConfig, names: Iterable[str]) -> list[str]:
    """The flags of `names` that are given: their value is not the default."""
    fields = JobConfig.__dataclass_fields__
    return [flag(name) for name in names if getattr(config, name) != fields[name].default]


def _lacking(config: JobConfig, columns: Mapping[str, list[str]]) -> list[str]:
    """Columns of the training data that those of validation have not, in words.

    feed may do without them; whether it does is seen by the first worker.
    """
    found = columns.get("validation_data", [])
    missing = [name for name in columns.get("training_data", []) if name not in found]
    if not found or not missing:
        return []
    names = ", ".join(f"{name!r}{near(name, found)}" for name in missing)
    noun = "column" if len(missing) == 1 else "columns"
    return [
        f"--validation-data: {config.validation_data} has no {noun} {names}, which "
        "--training-data has"
    ]
