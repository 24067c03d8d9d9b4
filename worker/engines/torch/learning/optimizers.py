"""Optimizers of torch.optim as the rules that servers run, and their rates by version.

Owns which of them shoal supports, and the schedule, which is stepped ahead once a version. The
arithmetic of an update is native/'s, in torch.optim's form.
"""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from shoal.errors import UserError
from shoal.native.optimizers import OptimizerSpec
from shoal.worker.code.module import UserModule, user_code
from shoal.worker.model.learning.optimizers import ServedOptimizers

_RATE = "lr"

_NO_RULE = ("params", _RATE, "initial_lr", "foreach", "fused", "capturable", "differentiable")
"""Of a group's options, those that are no part of the rule."""

Scheduler = Callable[[Any], Any]


class TorchRule:
    """The user's optimizer, split into what servers do and what the worker does.

    spec: the update rule, run by the servers. accumulated: 1, as optimizers of PyTorch say nothing.
    """

    accumulated = 1

    def __init__(
        self,
        optimizer: Any,
        what: str,
        parameters: Sequence[torch.Tensor],
        *,
        scheduler: Scheduler | None = None,
        scheduler_what: str = "",
        minibatches: int = 1,
    ) -> None:
        """optimizer: of torch.optim, or a function of parameters that gives one.

        what: what it came from, for errors. parameters: all that it is to have. scheduler: the
        user's. minibatches: of which a push is made. Raises UserError if it is not supported.
        """
        if callable(optimizer) and not isinstance(optimizer, torch.optim.Optimizer):
            with user_code(what):
                optimizer = optimizer([torch.nn.Parameter(torch.zeros(1))])
            parameters = []
        self._what = what
        self.spec = _spec_of(optimizer, what, parameters)
        self._optimizer = optimizer
        self._minibatches = minibatches
        self._rates = array("d", [self._rate()])
        self._scheduler: Any = None
        if scheduler is not None:
            self._what = scheduler_what
            self._schedule(scheduler)

    def _schedule(self, scheduler: Scheduler) -> None:
        with user_code(self._what):
            self._scheduler = scheduler(self._optimizer)
        kind = type(self._scheduler).__name__
        if isinstance(self._scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise UserError(
                f"{self._what} gives {kind}, which waits for evaluations: take "
                "shoal.callbacks.ReduceLROnPlateau in callbacks()"
            )
        if not isinstance(self._scheduler, torch.optim.lr_scheduler.LRScheduler):
            raise UserError(
                f"{self._what} returned {kind}, not a torch.optim.lr_scheduler.LRScheduler"
            )
        self._rates[0] = self._rate()
        self._rule = _rule_of(self._optimizer)

    def _rate(self) -> float:
        return float(self._optimizer.param_groups[0][_RATE])

    def learning_rate(self, version: int) -> float:
        """The rate at a minibatch of the training, which is a version where a push is of one.

        Raises UserCodeError if the user's schedule raises.
        """
        if self._scheduler is None:
            return self._rates[0]
        update = version // self._minibatches
        with user_code(f"the learning rate of {self._what}"), warnings.catch_warnings():
            # That it is stepped without the optimizer, whose steps are the servers'.
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
            while len(self._rates) <= update:
                self._scheduler.step()
                self._rates.append(self._rate())
                if _rule_of(self._optimizer) != self._rule:
                    raise UserError(
                        f"{self._what} changes more than the rate, such as the momentum: servers "
                        "keep the rule. OneCycleLR and CyclicLR take cycle_momentum=False"
                    )
        return self._rates[update]

    def clip(self, dense: Sequence[Any], tables: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Gradients as they are: optimizers of PyTorch clip none."""
        return list(dense), list(tables)


def _spec_of(optimizer: Any, what: str, parameters: Sequence[torch.Tensor]) -> OptimizerSpec:
    """The rule of an optimizer. Raises UserError for one that servers do not run."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UserError(
            f"{what} returned {type(optimizer).__name__}, not an optimizer of torch.optim, such as "
            "torch.optim.Adagrad(parameters, lr=0.01)"
        )
    name = type(optimizer).__name__
    if not type(optimizer).__module__.startswith("torch.optim."):
        raise UserError(
            f"{what} returned {name}, a class of its own: servers compute updates, and have SGD, "
            "Adagrad, RMSprop, Adam and AdamW of torch.optim"
        )
    hooks = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    if any(getattr(optimizer, each, None) for each in hooks):
        raise UserError(
            f"{what}: the optimizer has hooks of its steps, which servers do and do not call: "
            "compute what they do in forward()"
        )
    first, *others = optimizer.param_groups
    for group in others:
        options = {each for each in first if each != "params" and first[each] != group.get(each)}
        if options:
            raise UserError(
                f"{what}: the optimizer has param_groups that differ in {sorted(options)[0]}: "
                "dense parameters have one rule. Tables may have others: return a dict, "
                '{"default": ..., "users": ...}, by table name'
            )
    given = {id(each) for group in optimizer.param_groups for each in group["params"]}
    if left := sum(id(each) not in given for each in parameters):
        raise UserError(
            f"{what}: {left} of {len(parameters)} parameters that require gradients are not given "
            "to the optimizer: give it all, and set requires_grad=False of those that are not to "
            "be trained"
        )
    try:
        return OptimizerSpec.from_torch(name, _rule_of(optimizer))
    except ValueError as error:
        raise UserError(f"{what}: {error}") from error


def _rule_of(optimizer: Any) -> dict[str, Any]:
    group = optimizer.param_groups[0]
    return {name: value for name, value in group.items() if name not in _NO_RULE}


def _spare_compiler() -> None:
    """Let an optimizer be made without PyTorch's compiler, to which it says not to compile it.

    To be told imports the compiler: a second of processor time and 80 MB, in each worker.
    """
    added = getattr(torch.optim.Optimizer.add_param_group, "__wrapped__", None)
    if added is not None:
        setattr(added, "__dynamo_disable", added)  # a name with two underscores


def optimizers_of(
    module: UserModule, parameters: Sequence[torch.Tensor] = (), minibatches: int = 1
) -> ServedOptimizers:
    """The optimizers of a module.

    parameters: of the model, those that require gradients; where there are none, the optimizer gets
    one of no model. minibatches: of which a push is made. Raises UserError or UserCodeError.
    """
    what, scheduler_what = module.describe("optimizer"), module.describe("scheduler")
    _spare_compiler()
    given_parameters = list(parameters) or [torch.nn.Parameter(torch.zeros(1))]
    with user_code(what):
        given = module.optimizer(given_parameters)
    if isinstance(given, Mapping):
        given = dict(given)

    def make(optimizer: Any, whose: str) -> TorchRule:
        # Of a dict, only the default one has the model's own parameters.
        own = given.get("default") if isinstance(given, Mapping) else given
        return TorchRule(
            optimizer,
            whose,
            parameters if optimizer is own else (),
            scheduler=module.scheduler,
            scheduler_what=scheduler_what,
            minibatches=minibatches,
        )

    return ServedOptimizers(given, what, make)
