"""--model-params in a worker: the functions of the user's module with the values that they take.

Owns which function takes which value. How the values are written is config/model_params.py's.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from shoal.base.modules.user_module import VALUES
from shoal.config.model_params import ARGUMENTS, FLAG, OF_TORCH, refusal
from shoal.errors import UserError
from shoal.worker.engines import engine_name

if TYPE_CHECKING:
    from shoal.worker.code.module import UserModule

_NAMES = {"prediction_outputs_processor": "PredictionOutputsProcessor"}
"""Fields of UserModule whose function has another name; custom_model has any."""

_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

Functions = dict[str, list[Callable[..., Any]]]


def with_params(module: UserModule, params: Mapping[str, Any]) -> UserModule:
    """The module, each of whose functions gets the values of its parameters with these names.

    A function with **kwargs gets those that no function names. Raises UserError for a name that
    nobody takes, and for a parameter without a value of a function that is called without
    arguments.
    """
    functions = {
        field.name: getattr(module, field.name)
        for field in fields(module)
        if field.name not in ("path", *VALUES)
    }
    takers: dict[str, list[inspect.Parameter]] = {
        name: [each for function in _each(value) for each in _parameters(function, name, params)]
        for name, value in functions.items()
    }
    named = {each.name for found in takers.values() for each in found if each.kind in _KEYWORD}
    open_to_all = any(
        each.kind == inspect.Parameter.VAR_KEYWORD for found in takers.values() for each in found
    )
    for name in params:
        if name not in named and not open_to_all:
            raise refusal(module.path.name, name, named)
    rest = {name: value for name, value in params.items() if name not in named}
    changed = {
        name: _mapped(
            value, functools.partial(_bound, name=name, params=params, rest=rest, module=module)
        )
        for name, value in functions.items()
    }
    return replace(module, **changed)


def _arguments(name: str, function: Callable[..., Any], params: Mapping[str, Any]) -> str:
    """The positional arguments that a function gets of shoal, in words; "" for none."""
    if name in OF_TORCH and engine_name() == "torch":
        return "" if made_without_parameters(function, params) else OF_TORCH[name]
    return ARGUMENTS.get(name, "")


def made_without_parameters(function: Any, params: Mapping[str, Any] | None = None) -> bool:
    """True for optimizer() of a model of Keras on PyTorch, which gets no parameters of the model.

    params: values that it may take by name.
    """
    keras = sys.modules.get("keras")
    if keras is None:
        return False
    if inspect.isclass(function):
        return issubclass(function, keras.optimizers.Optimizer)
    given = dict(params or {})
    while isinstance(function, functools.partial):
        given |= function.keywords
        function = function.func
    taken = {each.name for each in _signature(function) if each.kind in _KEYWORD}
    return _takes(function, 0, {name: given[name] for name in taken & given.keys()})


def _given(name: str, function: Callable[..., Any], params: Mapping[str, Any]) -> int:
    """The number of the arguments that a function gets of shoal."""
    text = _arguments(name, function, params)
    return text.count(",") + 1 if text else 0


def _each(value: Any) -> list[Callable[..., Any]]:
    """The functions of a field: of `loss` there may be several, or the names of some."""
    if isinstance(value, Mapping):
        return [function for each in value.values() for function in _each(each)]
    if isinstance(value, list | tuple):
        return [function for each in value for function in _each(each)]
    return [value] if callable(value) else []


def _mapped(value: Any, change: Callable[[Callable[..., Any]], Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _mapped(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(each, change) for each in value]
    return change(value) if callable(value) else value


def _signature(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """All parameters of a function, or of a class's __init__; none of what has no signature."""
    # Keras's classes have a __new__ that takes everything.
    of = function.__init__ if inspect.isclass(function) else function
    try:
        return list(inspect.signature(of).parameters.values())
    except (TypeError, ValueError):
        return []


def _parameters(
    function: Callable[..., Any], name: str, params: Mapping[str, Any]
) -> list[inspect.Parameter]:
    """The parameters beyond those that shoal gives; none of what has no signature.

    Without **kwargs of a class, which are for the class that it derives from.
    """
    parameters, given = _signature(function), _given(name, function, params)
    if not inspect.isclass(function):
        return parameters[given:]
    own = parameters[given + 1 :]
    return [each for each in own if each.kind != inspect.Parameter.VAR_KEYWORD]


def _takes(function: Callable[..., Any], count: int, named: Mapping[str, Any]) -> bool:
    """True if a function can be called with so many arguments, or does not tell."""
    if inspect.isclass(function):
        return True
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*range(count), **named)
    except TypeError:
        return False
    return True


def _bound(
    function: Callable[..., Any],
    *,
    name: str,
    params: Mapping[str, Any],
    rest: Mapping[str, Any],
    module: UserModule,
) -> Callable[..., Any]:
    own: dict[str, Any] = {}
    called = getattr(function, "__name__", _NAMES.get(name, name))
    given = _given(name, function, params)
    for each in _parameters(function, name, params):
        if each.kind == inspect.Parameter.VAR_KEYWORD:
            own |= rest
        elif each.kind in _KEYWORD and each.name in params:
            own[each.name] = params[each.name]
        elif each.kind in _KEYWORD and each.default is each.empty and not given:
            raise UserError(
                f"{module.describe(called)} has a parameter {each.name} without a default: give "
                f"its value, {FLAG} {each.name}=VALUE"
            )
    if given and not _takes(function, given, own):
        raise UserError(
            f"{module.describe(called)} is called with {_arguments(name, function, params)}, and "
            f"its parameters are {inspect.signature(function)}: have it take these, and no other "
            "without a default"
        )
    if not own:
        return function
    bound = functools.partial(function, **own)
    # Not of a class, whose attributes would become those of the instance.
    assigned = ("__module__", "__name__", "__qualname__", "__doc__")
    return functools.update_wrapper(bound, function, assigned=assigned, updated=())
