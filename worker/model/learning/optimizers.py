"""Which optimizer the dense variables have, and which each table.

Owns the choice: by the layer, by the names and patterns of optimizer(), or the default. One
optimizer's update rule, rate and clipping are optimizer.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Protocol

from shoal.base.words import near
from shoal.errors import UserError
from shoal.worker.code.module import user_code
from shoal.worker.model.built import UpdateRule

DEFAULT = "default"
"""The key of optimizer()'s dict for dense variables, and for tables without an optimizer."""


class ServedRule(UpdateRule, Protocol):
    """An optimizer with its clipping. accumulated: minibatches of a push, as it says; else 1."""

    accumulated: int

    def clip(self, dense: Sequence[Any], tables: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Clip gradients; a table is one variable to its norms."""


class ServedOptimizers:
    """The optimizers of a model. default: of the dense variables."""

    def __init__(self, given: Any, what: str, make: Callable[[Any, str], ServedRule]) -> None:
        """given: an optimizer, or a dict of them by table name or pattern, with "default".

        what: the function that gave it, for errors. make: of the user's optimizer, or what a
        layer has, and of what gave it. Raises UserError if one is not supported.
        """
        self._what = what
        self._make = make
        self._by_pattern: dict[str, ServedRule] = {}
        self._of_tables: list[ServedRule] = []
        self._made: dict[int, tuple[Any, ServedRule]] = {}
        if not isinstance(given, Mapping):
            self.default = self._served(given, what)
            return
        if DEFAULT not in given:
            raise UserError(
                f'{what} returned a dict without "{DEFAULT}": name the optimizer of the dense '
                "variables, and of tables that the dict does not name, so"
            )
        self.default = self._served(given[DEFAULT], f'{what}["{DEFAULT}"]')
        for name, optimizer in given.items():
            if not isinstance(name, str):
                raise UserError(f"{what}: {name!r} is not the name or pattern of a table")
            if name != DEFAULT:
                self._by_pattern[name] = self._served(optimizer, f"{what}[{name!r}]")

    def _served(self, optimizer: Any, what: str) -> ServedRule:
        """One for each object, however many names it is given."""
        known = self._made.get(id(optimizer))
        if known is None:
            known = self._made[id(optimizer)] = optimizer, self._make(optimizer, what)
        return known[1]

    def choose(
        self, tables: Mapping[str, Any], *, dense: bool, frozen: Collection[str] = ()
    ) -> None:
        """Choose for each table, once they are known.

        tables: the embedding layer of each, by name. dense: whether the model has variables
        that are trained beside them. frozen: the tables that no layer trains.
        Raises UserError for a name that no table has, for two choices that exclude each other, and
        for a choice for a table that is not trained.
        """
        for name in frozen:
            layer = tables[name]
            # keras-rs gives every table one.
            own = getattr(layer, "of_keras_rs", None) is None and getattr(layer, "optimizer", None)
            if own or name in self._by_pattern:
                raise UserError(
                    f"{self._what}: table {name!r} has trainable=False, and an optimizer of its "
                    f"own, by its {'layer' if own else 'name'}: remove the one or the other"
                )
        for pattern in self._by_pattern:
            if not any(fnmatchcase(name, pattern) for name in tables):
                there = f"its tables are {', '.join(tables)}" if tables else "it has no table"
                raise UserError(
                    f"{self._what} names the table {pattern!r}{near(pattern, tables, most=1)}, "
                    f"which the model does not have: {there}"
                )
        if dense and self.default.spec.kind == "rowwise_adagrad":
            raise UserError(
                f"{self._what}: RowwiseAdagrad keeps one number for a row, and dense variables "
                f'have no rows: return a dict with another optimizer as "{DEFAULT}", and '
                "RowwiseAdagrad for tables"
            )
        self._of_tables = [self._chosen(name, layer) for name, layer in tables.items()]
        counts = {each.accumulated for each in (self.default, *self._of_tables)}
        if len(counts) > 1:
            raise UserError(
                f"{self._what}: all optimizers of a model have the same "
                f"gradient_accumulation_steps, not {' and '.join(map(str, sorted(counts)))}: give "
                "--accumulate in their place"
            )

    def _chosen(self, name: str, layer: Any) -> ServedRule:
        own = getattr(layer, "optimizer", None)
        if own is not None:
            if name in self._by_pattern:
                by, instead = "layer", "Remove one"
                if getattr(layer, "of_keras_rs", None) is not None:
                    by = 'TableConfig, which has "adam" if none is given'
                    instead = "Remove it there"
                raise UserError(
                    f"the optimizer of table {name!r} is given twice: by its {by}, and by "
                    f"{self._what}. {instead}"
                )
            what = f"optimizer of embedding {layer.name!r}"
            if isinstance(own, str | dict):
                import keras  # late: only a layer of Keras has one by its name

                with user_code(what):
                    own = keras.optimizers.get(own)
            return self._served(own, what)
        if name in self._by_pattern:
            return self._by_pattern[name]
        fitting = (each for pattern, each in self._by_pattern.items() if fnmatchcase(name, pattern))
        return next(fitting, self.default)

    def of(self, position: int) -> ServedRule:
        """That of a table, by its position."""
        return self._of_tables[position]

    @property
    def accumulated(self) -> int:
        """Minibatches of a push, as the optimizers say; 1 if they say none."""
        return self.default.accumulated

    def rates(
        self, default: float, version: int, reduced: Callable[[float], float]
    ) -> tuple[float, ...]:
        """Learning rates of all tables at model version `version`; empty if all have `default`.

        default: rate of the default optimizer, as it is used. reduced: what is used of a rate.
        Raises UserCodeError if a schedule raises.
        """
        if all(each is self.default for each in self._of_tables):
            return ()
        own = {
            id(each): reduced(each.learning_rate(version))
            for each in set(self._of_tables)
            if each is not self.default
        }
        return tuple(own.get(id(each), default) for each in self._of_tables)

    def clip(self, dense: Sequence[Any], tables: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Clip gradients, those of each optimizer's variables by themselves.

        dense, tables: as `ServedOptimizer.clip`.
        """
        clipped, rows = list(dense), list(tables)
        for optimizer in dict.fromkeys((self.default, *self._of_tables)):
            places = [i for i, each in enumerate(self._of_tables) if each is optimizer]
            mine = dense if optimizer is self.default else []
            of_dense, of_tables = optimizer.clip(mine, [tables[i] for i in places])
            if optimizer is self.default:
                clipped = of_dense
            for place, gradient in zip(places, of_tables, strict=True):
                rows[place] = gradient
        return clipped, rows
