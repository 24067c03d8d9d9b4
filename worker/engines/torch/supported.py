"""Refuse unsupported parts of a user's module by name, before anything is trained."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from shoal.errors import UserError
from shoal.worker.engines.torch.plain_embeddings import ServedWeight


def check_module(model: torch.nn.Module, file: str) -> None:
    """Raises UserError for a part that servers, or a step of many workers, do not do.

    file: name of the user's file, for the message.
    """
    dynamo = sys.modules.get("torch._dynamo")  # who compiles has imported it, which takes a second
    if dynamo is not None and isinstance(model, dynamo.OptimizedModule):
        raise UserError(
            f"{file}: the model comes from torch.compile(model), which hides its names: call "
            "model.compile(), which compiles it in place"
        )
    _check_forward(model, file)
    for path, module in model.named_modules():
        where = f"{path or type(model).__name__} of the model in {file}"
        kind = type(module).__name__
        for name, each in [*module._parameters.items(), *module._buffers.items()]:
            if isinstance(each, UninitializedParameter | UninitializedBuffer):
                raise UserError(
                    f"{where} is a {kind}, whose {name} has no shape before it is called: give it "
                    "its sizes, or call the model once with a batch of zeros in custom_model()"
                )
            hooks = getattr(each, "_post_accumulate_grad_hooks", None)
            if hooks and not isinstance(each, ServedWeight):
                raise UserError(
                    f"{where}: its {name} has a hook that waits for accumulated gradients, and "
                    "servers accumulate them: take register_hook(), which sees each gradient"
                )
        weight = getattr(module, "weight", None)
        if getattr(module, "max_norm", None) is not None and not isinstance(weight, ServedWeight):
            raise UserError(
                f"{where} has max_norm, by which a lookup changes weights, which only servers do: "
                "normalize the looked-up rows in forward()"
            )
        statistics = isinstance(module, torch.nn.modules.batchnorm._NormBase)
        if statistics and module.track_running_stats and module.momentum is None:
            raise UserError(
                f"{where} is a {kind}(momentum=None), whose averages of all batches many workers "
                "cannot have: give it a momentum, such as 0.1"
            )


def _check_forward(model: torch.nn.Module, file: str) -> None:
    """Raises UserError unless forward() may be called with one argument, the features."""
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):  # of a module in C++
        return
    try:
        signature.bind("features")
    except TypeError:
        names = list(signature.parameters)
        raise UserError(
            f"{file}: forward() of {type(model).__name__} takes {', '.join(names) or 'nothing'}, "
            "and shoal calls it with one argument, the features that feed_batch gives: write "
            "forward(self, features), and take each there by its name, as "
            f"features[{(names or ['user'])[0]!r}]"
        ) from None


def named_tables(model: torch.nn.Module, plain: Any) -> dict[str, Any]:
    """The tables of a built model: one embedding of each, by the table's name.

    plain: those of plain embeddings. Modules of shoal.torch get their dotted paths as names.
    """
    from shoal.torch import Embedding

    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        if isinstance(module, Embedding):
            module.name = path or type(module).__name__.lower()
            if not module.shares_table:
                module.table = module.name
            found.setdefault(module.table, module)
    for name, table in plain.items():
        found.setdefault(name, table)
    return found
