"""The names that the user's module must define, for all that look for them.

Imports nothing: the client looks at the module's text, a worker at the module itself.
"""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

MODULE_FUNCTIONS = ("loss", "optimizer", "feed")
"""What the user's module must define beside the model; the first two it may compile it with."""

NEEDED = (
    "a model module needs loss and optimizer, or a model that is compiled with them, and feed or "
    "feed_batch; one of PyTorch needs loss or training_step, optimizer, and feed_batch"
)

_IN_THEIR_PLACE = {"feed": "feed_batch", "loss": "training_step"}

OPTIONAL = (
    "feed_batch",
    "eval_metrics_fn",
    "custom_data_reader",
    "PredictionOutputsProcessor",
    "callbacks",
    "training_step",
    "scheduler",
)
"""What it may define; the last two of a torch.nn.Module."""

VALUES = ("loss_weights", "class_weight")
"""What it may define that is no function."""

_OF_TORCH = {each.lower(): each for each in ("Adagrad", "Adam", "AdamW", "RMSprop", "SGD")}
"""Names of Keras -> the classes of torch.optim."""

_ELASTICDL = ("elasticai_api", "elasticdl", "elasticdl_client", "elasticdl_preprocessing")

_IN_PLACE = {
    "elasticdl.python.common.constants": "modes are the strings 'training', 'evaluation' and "
    "'prediction'",
    "elasticdl.python.elasticdl.layers.embedding": "from shoal.layers import Embedding",
    "elasticdl.python.elasticdl.callbacks": "from shoal.callbacks import LearningRateScheduler, "
    "MaxSteps",
    "elasticdl_preprocessing.layers": "from shoal.preprocessing import ...",
    "elasticdl_preprocessing.utils": "shoal.preprocessing.Statistics, for what shoal analyze found",
    "elasticdl_preprocessing.feature_column": "layers of shoal.preprocessing and shoal.layers",
    "elasticai_api": "shoal has the loop: a module of PyTorch needs the model, loss or "
    "training_step, optimizer and feed_batch",
    "elasticdl.python.data": "a custom_data_reader, or shoal.data.RecordIOWriter to write files",
}
"""Packages of ElasticDL -> what there is in shoal."""


def instead_of_elasticdl(module: str) -> str | None:
    """Advice about an import of ElasticDL's; None for any other module.

    module: as the import statement has it.
    """
    if module.partition(".")[0] not in _ELASTICDL:
        return None
    found = [name for name in _IN_PLACE if f"{module}.".startswith(f"{name}.")]
    instead = _IN_PLACE[max(found, key=len)] if found else "most need no import"
    return (
        f"{module} is a module of ElasticDL, which is not installed and not needed: {instead}; see "
        "docs/guide/moving-from-elasticdl.md"
    )


def optimizer_by_name(name: str) -> str:
    """The error of a name of Keras as the optimizer of a torch.nn.Module."""
    kind = _OF_TORCH.get(name.lower(), "Adagrad")
    return (
        f"optimizer is the name {name!r}, and that of a torch.nn.Module is a function of its "
        f"parameters: def optimizer(parameters): return torch.optim.{kind}(parameters, lr=0.01)"
    )


def missing_functions(defined: Container[str]) -> list[str]:
    """The names of `MODULE_FUNCTIONS` that neither are `defined` nor replaced by another."""
    return [
        name
        for name in MODULE_FUNCTIONS
        if name not in defined and _IN_THEIR_PLACE.get(name) not in defined
    ]


def path_of(model_zoo: str, model_def: str) -> Path:
    """The file of the module that --model-def names, in the folder --model-zoo."""
    *module, _ = model_def.replace("/", ".").split(".")
    return Path(model_zoo).joinpath(*module).with_suffix(".py")
