"""Which ids a model looks up: of which tables, in which calls, for given features.

Owns the trace that says so, and the order of calls and tables, by which vectors find their layers
again. The model is traced with 64-bit integers, and only what its ids need is ever computed; ids
that are features but for a shape are read directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from shoal.base.nested import leaves, named_leaves
from shoal.errors import UserError
from shoal.layers import lookup_with
from shoal.worker.code.keras_internals import taken_features
from shoal.worker.engines.host.float_ids import float_refused
from shoal.worker.engines.jax.arrays import in_step, sample
from shoal.worker.engines.jax.lookups import Recording, called
from shoal.worker.engines.jax.programs import Program
from shoal.worker.model.embeddings.integers import cast_features, not_kept
from shoal.worker.model.embeddings.keras_embeddings import noting_others, out_of_range
from shoal.worker.model.embeddings.sharing import sharing_refused
from shoal.worker.model.refusals import Refusals

Int64 = npt.NDArray[np.int64]

RECORDS = 3
"""Of the batch with which a model is traced: no matter how many."""


class TracedIds:
    """The lookups of a Keras model.

    tables: the first embedding layer of each table by the table's name, in the order of the tables
    on the servers. calls: the table of each call, in the order of the calls. positions: that of
    this table. frozen: the tables that no layer trains.

    The ids of Embedding layers that are no tables are found, too, if they follow from the features:
    JAX takes another row, or none, for an id that such a layer does not have.
    """

    def __init__(self, model: Any, features_spec: Any, refusals: Refusals, file: str) -> None:
        """Trace nothing yet. features_spec: nested ArraySpecs. file: of the user's."""
        self._model = model
        self._refusals = refusals
        self._file = file
        self._features = sample(features_spec, RECORDS)
        self._cast = cast_features(model, features_spec)
        self.calls: list[str] = []
        self.tables: dict[str, Any] = {}
        self.positions: list[int] = []
        self.frozen: set[str] = set()
        self._layers: list[Any] = []  # of the tables' calls, and then of the others
        self._places: list[int] = []  # of the outputs of the jaxpr that are computed, or features
        self._sources: list[int | None] = []  # of each of these: the feature that it is
        self._programs: dict[tuple[Any, ...], Any] = {}

    # ------------------------------------------------------------ the trace

    def trace(self) -> None:
        """Trace the model. Raises what it raises, and UserError for a lookup that is refused."""
        if not self._model.built:
            with lookup_with(Recording(self._refusals)):
                features = taken_features(self._model, in_step(self._features))
                self._model(features, training=False)
        record, _ = self._traced(self._features, training=False)
        self.calls = [layer.table for layer in record.layers]
        self._layers = [*record.layers, *record.others]
        for layer in record.layers:
            known = self.tables.setdefault(layer.table, layer)
            if (reason := sharing_refused(known, layer)) is not None:
                self._refusals.refuse(reason)
        names = list(self.tables)
        self.positions = [names.index(table) for table in self.calls]
        self.frozen = set(names) - {each.table for each in record.layers if each.trainable}

    def _traced(self, features: Any, *, training: bool) -> tuple[Recording, Any]:
        """The lookups of the model, and the jaxpr of their ids.

        Its inputs are the trained variables, the others, a number a table, and the features.
        """
        records: list[Recording] = []

        def function(trained: Any, others: Any, witnesses: Any, given: Any) -> list[Any]:
            record = Recording(self._refusals, dict(zip(self.tables, witnesses, strict=True)))
            records.append(record)
            with lookup_with(record), noting_others() as noted:
                called(self._model, trained, others, given, training=training)
            noted = [each for each in noted if jnp.issubdtype(each[1].dtype, jnp.integer)]
            record.others = [layer for layer, _ in noted]
            return [*record.ids, *(ids.reshape(-1).astype("int64") for _, ids in noted)]

        values = [
            [variable.value for variable in variables]
            for variables in (self._model.trainable_variables, self._model.non_trainable_variables)
        ]
        witnesses = [np.float32(0)] * len(self.tables)
        with jax.enable_x64(True):
            closed = jax.make_jaxpr(function)(*values, witnesses, features)
        return records[-1], closed

    def check(self) -> None:
        """Raise UserError if ids cannot be known from the features alone."""
        closed = self._jaxpr(self._features)
        self._refuse_unknown(closed)
        for place in range(len(self._layers)):
            if self._unknown(closed, place) is not None:
                continue
            program = self._program(closed, [place])
            given = [each for each, its in enumerate(self._features_of(program)) if its]
            found = program.input_of(0)
            constants = sum(program.used) - len(given)
            self._places.append(place)
            self._sources.append(None if found is None or constants else given[found])

    def check_training(self) -> None:
        """Raise UserError as `check`, for a call in training; and if its ids are others there."""
        closed = self._traced(self._features, training=True)[1]
        self._refuse_unknown(closed)
        otherwise = self._jaxpr(self._features)
        for place, layer in enumerate(self._layers[: len(self.calls)]):
            if not self._program(closed, [place]).same(self._program(otherwise, [place])):
                raise UserError(
                    f"{self._file}: the model calls embedding {layer.name!r} with other ids in "
                    "training than otherwise: shoal looks ids up before the step, so they must be "
                    "alike whether training or not; compute them in feed_batch, whose mode tells"
                )

    def _refuse_unknown(self, closed: Any) -> None:
        for place in range(len(self.calls)):
            if (found := self._unknown(closed, place)) is not None:
                raise UserError(
                    f"{self._file}: the ids of embedding {self._layers[place].name!r} are computed "
                    f"from {found}: shoal looks ids up before the step, so they must follow from "
                    "the features alone; compute them in feed_batch"
                )

    def _unknown(self, closed: Any, place: int) -> str | None:
        """The sources of a call's ids that are no features, in words; None if there are none."""
        sources = [
            *(f"the variable {e.path}, which is being trained" for e in self._trained),
            *(_changing(each) for each in self._others),
            *(f"the rows of table {each!r}" for each in self.tables),
        ]
        program = self._program(closed, [place])
        for text, used in zip(sources, program.used, strict=False):
            if used and text is not None:
                return text
        return "random numbers drawn inside the model" if program.draws else None

    @property
    def _trained(self) -> Sequence[Any]:
        return list(self._model.trainable_variables)

    @property
    def _others(self) -> Sequence[Any]:
        return list(self._model.non_trainable_variables)

    def _program(self, closed: Any, places: Sequence[int]) -> Program:
        return Program.of(closed, [each in places for each in range(len(closed.jaxpr.outvars))])

    # ------------------------------------------------------------ the ids of a batch

    def _jaxpr(self, features: Any) -> Any:
        return self._traced(features, training=False)[1]

    def _features_of(self, program: Program) -> list[bool]:
        """True for each feature that a program uses."""
        return program.used[len(program.used) - len(leaves(self._features)) :]

    def _computed(self, features: Any, places: Sequence[int]) -> list[Int64]:
        """The ids of some calls, by what of the model they need; compiled for each size."""
        given = leaves(features)
        key = tuple(each.shape for each in given)
        with jax.enable_x64(True):
            if key not in self._programs:
                program = self._program(self._jaxpr(features), places)
                pairs = zip((*self._trained, *self._others), program.used, strict=False)
                constants = [variable.value for variable, used in pairs if used]
                program, floats = program.with_cast_floats()
                self._programs[key] = (
                    *(jax.jit(program), constants, self._features_of(program)),
                    [each - len(constants) for each in floats],
                )
            compiled, constants, used, floats = self._programs[key]
            names = [name or "the features" for name, _ in named_leaves(features)]
            taken = [each for each, its in zip(given, used, strict=True) if its]
            found = [np.asarray(each) for each in compiled(*constants, *taken)]
        names = [name for name, its in zip(names, used, strict=True) if its]
        for place, numbers in zip(floats, found[len(places) :], strict=True):
            if (reason := float_refused(names[place], numbers)) is not None:
                self._refusals.refuse(f"{self._file}: {reason}")
        return found[: len(places)]

    def by_table(self, features: Any) -> list[list[Int64]]:
        """For each table, the ids int64 [n] that each call looks up in `features`.

        Raises UserError for an id that a table cannot have.
        """
        by_name: dict[str, list[Int64]] = {name: [] for name in self.tables}
        if (reason := not_kept(features, self._cast)) is not None:
            self._refusals.refuse(f"{self._file}: {reason}")
        found = self.numbers(features)
        for place, numbers in zip(self._places, found, strict=True):
            if (reason := out_of_range(self._layers[place], numbers)) is not None:
                self._refusals.refuse(f"{self._file}: {reason}")
        for name, numbers in zip(self.calls, found, strict=False):
            by_name[name].append(numbers)
        return list(by_name.values())

    def numbers(self, features: Any) -> list[Int64]:
        """The ids int64 [n] of each call, of the tables and then of other layers, unchecked.

        Calls that take the same feature share an array.
        """
        given = leaves(features)
        of = {
            source: given[source].reshape(-1).astype(np.int64, copy=False)
            for source in set(self._sources)
            if source is not None
        }
        pairs = list(zip(self._places, self._sources, strict=True))
        places = [place for place, source in pairs if source is None]
        left = iter(self._computed(features, places) if places else ())
        return [next(left) if source is None else of[source] for _, source in pairs]


def _changing(variable: Any) -> str | None:
    """A variable that training may change without a gradient, in words; None for constants."""
    changes = jnp.issubdtype(variable.dtype, jnp.floating)
    return f"the variable {variable.path}, which training may change" if changes else None
