"""The definition of an update rule: its kind, its hyperparameters, its slots.

Owns the names, defaults, ranges and JSON form of an optimizer; the arithmetic is in
steps.h, applied to rows by ``rowstore`` and to dense blocks by ``dense``. Names and
defaults are those of Keras 3. The flag ``torch`` takes a rule in torch.optim's form,
which has epsilon outside of the root and the rate outside of the momentum. The
learning rate is not part of the specification: it is passed with every update, so
that schedules need no support here.

Sparse updates are lazy: a row that is in no batch is not touched, so its momentum
does not go on and its moments and weights do not decay meanwhile. A table whose rows
are all in every batch equals the dense rule. The notes per kind are in ``KINDS``.
"""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127

LEAST_FTRL_RATE = 1e-30
"""As push.h has it. FTRL divides by the rate, of which staleness may leave a small part."""

Hyperparameter = float | bool
Check = tuple[Callable[[float], bool], str]

_ANY: Check = (math.isfinite, "a finite number")
_AT_LEAST_0: Check = (lambda x: x >= 0, "at least 0")
_ABOVE_0: Check = (lambda x: x > 0, "above 0")
_FRACTION: Check = (
    lambda x: x >= 0 and ctypes.c_float(x).value < 1,
    "at least 0 and below 1 as a float32",
)
_SHARE: Check = (lambda x: 0 <= x <= 1, "between 0 and 1")
_AT_MOST_0: Check = (lambda x: x <= 0, "at most 0")


@dataclass(frozen=True)
class _Kind:
    """Defaults of a kind (a bool default makes the hyperparameter a flag) and its rule."""

    defaults: Mapping[str, Hyperparameter]
    lazy: str
    """What a sparse update leaves out for rows that are not in the batch."""


_ADAM: dict[str, Hyperparameter] = {
    "beta_1": 0.9,
    "beta_2": 0.999,
    "epsilon": 1e-7,
    "amsgrad": False,
    "torch": False,
}

KINDS: Mapping[str, _Kind] = {
    "sgd": _Kind({}, "nothing: rows without gradient do not move in the dense rule either"),
    "momentum": _Kind(
        {"momentum": 0.9, "nesterov": False, "torch": False},
        "the velocity neither decays nor moves the row until its next gradient",
    ),
    "adagrad": _Kind(
        {"initial_accumulator_value": 0.1, "epsilon": 1e-7, "torch": False},
        "nothing: a zero gradient changes neither the accumulator nor the row",
    ),
    "rowwise_adagrad": _Kind(
        {"initial_accumulator_value": 0.1, "epsilon": 1e-7},
        "nothing, as adagrad; one accumulator per row, of the mean squared gradient",
    ),
    "rmsprop": _Kind(
        {"rho": 0.9, "momentum": 0.0, "epsilon": 1e-7, "centered": False, "torch": False},
        "the averages do not decay and the momentum does not move the row",
    ),
    "adam": _Kind(
        _ADAM,
        "the moments do not decay and do not move the row; the bias correction goes by the "
        "table's step, not by the row's own count",
    ),
    "adamw": _Kind(
        _ADAM | {"weight_decay": 0.004},
        "as adam; weights decay only in the batches the row is in",
    ),
    "ftrl": _Kind(
        {
            "learning_rate_power": -0.5,
            "initial_accumulator_value": 0.1,
            "l1_regularization_strength": 0.0,
            "l2_regularization_strength": 0.0,
            "l2_shrinkage_regularization_strength": 0.0,
            "beta": 0.0,
        },
        "shrinkage applies only in the batches the row is in",
    ),
}
"""Every kind of optimizer. All also take the hyperparameters in ``COMMON``."""

COMMON = ("weight_decay", "clipvalue", "clipnorm", "global_clipnorm")
"""Optional for every kind; None or 0 means not set.

clipnorm clips by the norm of one row in a table and of the whole vector in a dense
block. global_clipnorm is carried but not applied by the stores, which never see all
gradients: whoever holds them uses ``gradients.clip_by_global_norm``.
"""

_NEAREST: Mapping[str, str] = {
    "Nadam": "Adam",
    "Adamax": "Adam",
    "Adafactor": "Adam",
    "Lamb": "AdamW",
    "Lion": "AdamW",
    "Muon": "AdamW",
    "Adadelta": "RMSprop",
    "NAdam": "Adam",
    "RAdam": "Adam",
}
"""Optimizers of Keras and PyTorch that servers do not run, and the ones to take in their place."""

_OF_TORCH: Mapping[str, str] = {"epsilon": "eps", "rho": "alpha"}
"""Hyperparameters that torch.optim has by another name."""

_CHECKS: Mapping[str, Check] = {
    "momentum": _SHARE,
    "rho": _SHARE,
    "beta_1": _FRACTION,
    "beta_2": _FRACTION,
    "epsilon": _AT_LEAST_0,
    "initial_accumulator_value": _AT_LEAST_0,
    "learning_rate_power": _AT_MOST_0,
    "l1_regularization_strength": _AT_LEAST_0,
    "l2_regularization_strength": _AT_LEAST_0,
    "l2_shrinkage_regularization_strength": _AT_LEAST_0,
    "beta": _ANY,
    "weight_decay": _AT_LEAST_0,
    "clipvalue": _AT_LEAST_0,
    "clipnorm": _AT_LEAST_0,
    "global_clipnorm": _AT_LEAST_0,
}

_CONSTANTS = (
    *(name for name in _CHECKS if name not in ("initial_accumulator_value", "global_clipnorm")),
    *("nesterov", "torch"),
)
"""What a kernel reads: the rest is in the slots' first values, or applied by others."""

_SLOTS: Mapping[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("momentum",),
    "nesterov": ("momentum",),
    "adagrad": ("accumulator",),
    "rowwise_adagrad": ("accumulator",),
    "rmsprop": ("velocity",),
    "rmsprop_momentum": ("velocity", "momentum"),
    "rmsprop_centered": ("velocity", "average_gradient"),
    "rmsprop_centered_momentum": ("velocity", "momentum", "average_gradient"),
    "adam": ("momentum", "velocity"),
    "amsgrad": ("momentum", "velocity", "velocity_hat"),
    "ftrl": ("accumulator", "linear"),
    "torch_momentum": ("momentum_buffer",),
    "torch_adagrad": ("accumulator",),
    "torch_rmsprop": ("velocity",),
    "torch_rmsprop_momentum": ("velocity", "momentum_buffer"),
}


def _checked(kind: str, name: str, value: object, default: Hyperparameter) -> Hyperparameter:
    where = f"optimizer {kind!r}: hyperparameter {name!r}"
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
        raise ValueError(f"{where} must be true or false, got {value!r}")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{where} must be a number, got {value!r}")
    test, wanted = _CHECKS[name]
    if not math.isfinite(value) or not test(value):
        raise ValueError(f"{where} must be {wanted}, got {value!r}")
    return float(value)


def _check_class(name: str, kinds: Mapping[str, str], module: str = "") -> None:
    """Raise ValueError for a class of optimizers that is none of `kinds`. module: its prefix."""
    if name not in kinds:
        near = _NEAREST.get(name)
        raise ValueError(
            f"the optimizer {module}{name} is not supported: the servers have "
            f"{', '.join(kinds)}" + (f"; the nearest is {near}" if near else "")
        )


@dataclass(frozen=True)
class OptimizerSpec:
    """An optimizer as the servers run it.

    ``hyperparameters`` is completed with the defaults, so two specifications that mean
    the same are equal. Raises ValueError for an unknown kind or name, or a value out of
    its range.
    """

    kind: str
    hyperparameters: Mapping[str, Hyperparameter] = field(default_factory=dict)

    UNSUPPORTED: ClassVar[tuple[str, ...]] = (
        "use_ema",
        "gradient_accumulation_steps",
        "loss_scale_factor",
    )
    """Keras's options that need the whole model in one place."""

    def __post_init__(self) -> None:
        known = KINDS.get(self.kind)
        if known is None:
            raise ValueError(f"unknown optimizer kind {self.kind!r}; known: {', '.join(KINDS)}")
        defaults: dict[str, Hyperparameter] = dict.fromkeys(COMMON, 0.0) | dict(known.defaults)
        unknown = sorted(set(self.hyperparameters) - set(defaults))
        if unknown:
            raise ValueError(
                f"optimizer {self.kind!r} has no hyperparameter {', '.join(unknown)}; "
                f"it has {', '.join(defaults)}"
            )
        # None comes from Keras's configurations, for what is not set.
        given: Mapping[str, object] = self.hyperparameters
        for name, value in given.items():
            default = defaults[name]
            if value is None and name in COMMON:
                defaults[name] = 0.0
            else:
                defaults[name] = _checked(self.kind, name, value, default)
        clips = [name for name in COMMON[1:] if defaults[name]]
        if len(clips) > 1:
            raise ValueError(f"optimizer {self.kind!r}: {' and '.join(clips)} exclude each other")
        if defaults.get("torch") and defaults.get("centered"):
            raise ValueError(f"optimizer {self.kind!r}: torch's form has no centered")
        self._check_divisor(defaults)
        if not defaults.get("torch", True):
            del defaults["torch"]  # as checkpoints have it from before there was such a form
        object.__setattr__(self, "hyperparameters", defaults)

    def _check_divisor(self, given: Mapping[str, Hyperparameter]) -> None:
        """Raise ValueError where a gradient of 0 would be divided by 0, and the row be NaN."""
        start, power = "initial_accumulator_value", "learning_rate_power"
        names = {
            "adagrad": ("epsilon", start),
            "rowwise_adagrad": ("epsilon", start),
            "rmsprop": ("epsilon",),
            "adam": ("epsilon",),
            "adamw": ("epsilon",),
            "ftrl": (start, "beta", "l2_regularization_strength") if given.get(power) else (),
        }.get(self.kind, ())
        if names and not any(ctypes.c_float(given[name]).value for name in names):
            raise ValueError(
                f"optimizer {self.kind!r}: hyperparameter {' or '.join(map(repr, names))} must be "
                "above 0 as a float32, or a gradient of 0 makes NaN"
            )

    def __hash__(self) -> int:
        return hash(self.to_json())

    @property
    def rule(self) -> str:
        """The kernel of steps.h that this kind with these flags runs."""
        h = self.hyperparameters
        torch = "torch_" if h.get("torch") else ""
        if self.kind == "momentum" and h["nesterov"] and not torch:
            return "nesterov"
        if self.kind in ("adam", "adamw"):
            return "amsgrad" if h["amsgrad"] else "adam"
        if self.kind == "rmsprop":
            centered = "_centered" if h["centered"] else ""
            return f"{torch}rmsprop{centered}{'_momentum' if h['momentum'] else ''}"
        return f"{torch}{self.kind}"

    @property
    def slot_names(self) -> tuple[str, ...]:
        """Names of the optimizer's slots, in storage order, as Keras names its variables."""
        return _SLOTS[self.rule]

    @property
    def slot_initial_values(self) -> tuple[float, ...]:
        """The value that each slot starts from."""
        start = float(self.hyperparameters.get("initial_accumulator_value", 0.0))
        return tuple(start if name == "accumulator" else 0.0 for name in self.slot_names)

    def slot_width(self, dim: int) -> int:
        """Floats that each slot keeps for a row of ``dim`` columns."""
        return 1 if self.kind == "rowwise_adagrad" else dim

    @property
    def constants(self) -> dict[str, float]:
        """The numbers that the kernels read, by the names of SHOAL_EACH_CONSTANT in steps.h."""
        return {name: float(self.hyperparameters.get(name, 0.0)) for name in _CONSTANTS}

    def check_learning_rate(self, learning_rate: float) -> None:
        """Raise ValueError for a rate this optimizer cannot use.

        The kernels compute in float32, so it is the rate as such a number that counts.
        """
        if not abs(learning_rate) <= LARGEST_FLOAT32:
            raise ValueError(f"learning_rate must be finite, got {learning_rate!r}")
        if self.kind == "ftrl" and learning_rate < LEAST_FTRL_RATE:
            raise ValueError(
                f"learning_rate must be at least {LEAST_FTRL_RATE} for ftrl, got "
                f"{learning_rate!r}: have the schedule end above it"
            )

    def to_json(self) -> str:
        """One line of JSON with sorted keys."""
        return json.dumps(
            {"kind": self.kind, "hyperparameters": dict(self.hyperparameters)}, sort_keys=True
        )

    @classmethod
    def from_json(cls, text: str) -> OptimizerSpec:
        """Read what ``to_json`` wrote; raises ValueError if it is something else."""
        data = json.loads(text)
        if not isinstance(data, dict) or set(data) != {"kind", "hyperparameters"}:
            raise ValueError(f"not an optimizer specification: {text[:100]!r}")
        return cls(data["kind"], data["hyperparameters"])

    @classmethod
    def from_keras(cls, class_name: str, config: Mapping[str, Any]) -> OptimizerSpec:
        """Build from a Keras optimizer's class name and ``get_config()``.

        Raises ValueError for a class without a kernel here and for options that need the
        whole model in one place (averaged weights, gradient accumulation, loss scaling).
        """
        kinds = {
            "SGD": "momentum" if config.get("momentum") else "sgd",
            "Adagrad": "adagrad",
            "RowwiseAdagrad": "rowwise_adagrad",
            "RMSprop": "rmsprop",
            "Adam": "adam",
            "AdamW": "adamw",
            "Ftrl": "ftrl",
        }
        _check_class(class_name, kinds)
        for option in cls.UNSUPPORTED:
            if config.get(option):
                raise ValueError(f"optimizer {class_name}: option {option} is not supported")
        names = {*KINDS[kinds[class_name]].defaults, *COMMON}
        return cls(kinds[class_name], {k: v for k, v in config.items() if k in names})

    @classmethod
    def from_torch(cls, class_name: str, options: Mapping[str, Any]) -> OptimizerSpec:
        """Build from the name of a class of torch.optim and its ``defaults``.

        Raises ValueError for a class or an option without a kernel here.
        """
        kinds = {
            "SGD": "momentum" if options.get("momentum") else "sgd",
            "Adagrad": "adagrad",
            "RMSprop": "rmsprop",
            "Adam": "adam",
            "AdamW": "adamw",
        }
        _check_class(class_name, kinds, "torch.optim.")
        kind = kinds[class_name]
        unsupported = {"dampening", "maximize", "lr_decay", "centered"}
        unsupported |= {"weight_decay"} if class_name != "AdamW" else set()
        if used := sorted(name for name in unsupported if options.get(name)):
            instead = "; AdamW decays weights" if used == ["weight_decay"] else ""
            raise ValueError(
                f"torch.optim.{class_name}: the servers have no {' and no '.join(used)}{instead}"
            )
        betas = options.get("betas", (0.9, 0.999))
        named: dict[str, Any] = {**options, "beta_1": betas[0], "beta_2": betas[1], "torch": True}
        named |= {mine: options[its] for mine, its in _OF_TORCH.items() if its in options}
        names = {*KINDS[kind].defaults, "weight_decay"}
        return cls(kind, {name: named[name] for name in names if name in named})
