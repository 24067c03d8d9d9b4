"""A model of the user's as its engine has built it, with all that the servers are told of it.

Owns the records that cross from an engine's way of building (keras_models.py for Keras's) to the
rest of the worker, which knows neither layers nor optimizers of a framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from shoal.errors import UserCodeError, UserError
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.worker.code.module import UserModule, user_code
from shoal.worker.engines import chosen_engine
from shoal.worker.model.refusals import Refusals

if TYPE_CHECKING:
    from shoal.config.job import JobConfig
    from shoal.worker.engines.engine import Dense, Ids
    from shoal.worker.model.learning.losses import DeclaredLosses

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ServedTable:
    """A table that a model looks up.

    layer: the first one that looks it up, of the engine's. initializer: with `given`, if the
    user's code gives rows. seed: of the table, an int64. vocabulary: ids from 0 on; 0 for any
    int64 id. value_dtype: as of pb.TableSpec. frozen: whether no layer trains it. options: of the
    layer, by name. first_rows: gives the rows of the user's code in pieces, ids int64 [n] and rows
    float32 [n, dim]. whole: whether these are all rows that there are. let_go: releases what holds
    them.
    """

    name: str
    dim: int
    layer: Any
    initializer: InitializerSpec
    seed: int
    vocabulary: int = 0
    value_dtype: str = ""
    frozen: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    first_rows: Callable[[], Iterator[tuple[Int64, Float32]]] | None = None
    whole: bool = False
    let_go: Callable[[], None] = lambda: None


class UpdateRule(Protocol):
    """The user's optimizer, split into what servers do and what the worker does."""

    spec: OptimizerSpec

    def learning_rate(self, version: int) -> float:
        """The rate at model version `version`. Raises UserCodeError if the user's code does."""


class Optimizers(Protocol):
    """The optimizers of a model. accumulated: minibatches of a push, as they say; else 1."""

    @property
    def default(self) -> UpdateRule:
        """That of the dense variables."""

    @property
    def accumulated(self) -> int:
        """Minibatches of a push, as the optimizers say; 1 if they say none."""

    def of(self, position: int) -> UpdateRule:
        """That of a table, by its position."""

    def rates(
        self, default: float, version: int, reduced: Callable[[float], float]
    ) -> tuple[float, ...]:
        """Learning rates of all tables at model version `version`; empty if all have `default`.

        default: rate of the default optimizer, as it is used. reduced: what is used of a rate.
        """

    def clip(self, dense: Sequence[Any], tables: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Clip gradients, in the engine's arrays: dense ones a variable, and those of tables."""


@dataclass(frozen=True)
class ToBuild:
    """A model to be built, and for whom.

    features_spec: of a batch; None where there are no data, for a model that tells. weights_spec:
    of the records' weights; None for none. worker, incarnation: whose random numbers are drawn.
    """

    module: UserModule
    config: JobConfig
    refusals: Refusals
    features_spec: Any
    weights_spec: Any
    worker: int
    incarnation: int


@dataclass(frozen=True)
class BuiltModel:
    """A model with its lookups found.

    model: the user's object. module: with what the model was compiled with. features_spec: of a
    batch. tables: by name, in the servers' order. trainable, state: dense variables, and
    those floating ones that training changes without a gradient. loss: of the module.
    training_loss: the scalar of labels, predictions and the records' weights in training.
    """

    model: Any
    module: UserModule
    features_spec: Any
    optimizers: Optimizers
    loss: DeclaredLosses
    training_loss: Callable[[Any, Any, Any], Any]
    ids: Ids
    tables: dict[str, ServedTable]
    trainable: Dense
    state: Dense


@contextmanager
def calling(
    what: str, refusals: Refusals, model: Any, module: UserModule, labels: Any = None
) -> Iterator[None]:
    """Run the body as `user_code`; an error of our own lookups is raised unchanged.

    labels: those that the body computes with.
    """
    try:
        with user_code(what):
            yield
    except (UserError, UserCodeError) as error:
        if refusals.last is not None:
            raise refusals.last from None
        message = chosen_engine().explained(error.__cause__, model, module, labels)
        if message is not None:
            raise UserError(message) from error
        raise
