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

from shoal.base.nested import leaves
from shoal.errors import UserError
from shoal.layers import lookup_with
from shoal.worker.code.keras_internals import taken_features
from shoal.worker.engines.jax.arrays import in_step, sample
from shoal.worker.engines.jax.lookups import Recording, called
from shoal.worker.engines.jax.programs import Program
from shoal.worker.model.embeddings.integers import cast_features, not_kept
from shoal.worker.model.embeddings.keras_embeddings import out_of_range
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
        self._layers: list[str] = []
        self._sources: list[int] | None = None
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
        self._layers = [layer.name for layer in record.layers]
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
            with lookup_with(record):
                called(self._model, trained, others, given, training=training)
            return record.ids

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
        self.refuse_unknown(training=False)
        program = Program.of(self._jaxpr(self._features), [True] * len(self.calls))
        places = [place for place, used in enumerate(self._used_features(program)) if used]
        found = [program.input_of(call) for call in range(len(self.calls))]
        before = sum(program.used) - len(places)
        if not before and None not in found:
            self._sources = [places[each] for each in found if each is not None]

    def refuse_unknown(self, *, training: bool) -> None:
        """Raise UserError as `check`, for a call of the model in training or not."""
        _, closed = self._traced(self._features, training=training)
        trained, others = self._model.trainable_variables, self._model.non_trainable_variables
        sources = [
            *(f"the variable {each.path}, which is being trained" for each in trained),
            *(_changing(each) for each in others),
            *(f"the rows of table {each!r}" for each in self.tables),
        ]
        for call, layer in enumerate(self._layers):
            program = Program.of(closed, [place == call for place in range(len(self._layers))])
            found = [
                text
                for text, used in zip(sources, program.used, strict=False)
                if used and text is not None
            ]
            if program.draws:
                found.append("random numbers drawn inside the model")
            if found:
                raise UserError(
                    f"{self._file}: the ids of embedding {layer!r} are computed from {found[0]}: "
                    "shoal looks ids up before the step, so they must follow from the features "
                    "alone; compute them in feed_batch"
                )

    # ------------------------------------------------------------ the ids of a batch

    def _jaxpr(self, features: Any) -> Any:
        return self._traced(features, training=False)[1]

    def _used_features(self, program: Program) -> list[bool]:
        return program.used[len(program.used) - len(leaves(self._features)) :]

    def _computed(self, features: Any) -> list[Int64]:
        """The ids of each call, by what of the model they need; compiled for each size."""
        given = leaves(features)
        key = tuple(each.shape for each in given)
        with jax.enable_x64(True):
            if key not in self._programs:
                program = Program.of(self._jaxpr(features), [True] * len(self.calls))
                variables = [
                    variable.value
                    for variable, used in zip(
                        (*self._model.trainable_variables, *self._model.non_trainable_variables),
                        program.used,
                        strict=False,
                    )
                    if used
                ]
                self._programs[key] = jax.jit(program), variables, self._used_features(program)
            compiled, variables, used = self._programs[key]
            taken = [each for each, its in zip(given, used, strict=True) if its]
            return [np.asarray(each) for each in compiled(*variables, *taken)]

    def by_table(self, features: Any) -> list[list[Int64]]:
        """For each table, the ids int64 [n] that each call looks up in `features`.

        Raises UserError for an id that a table cannot have.
        """
        by_name: dict[str, list[Int64]] = {name: [] for name in self.tables}
        if (reason := not_kept(features, self._cast)) is not None:
            self._refusals.refuse(f"{self._file}: {reason}")
        for name, numbers in zip(self.calls, self._numbers(features), strict=True):
            if (reason := out_of_range(self.tables[name], numbers)) is not None:
                self._refusals.refuse(f"{self._file}: {reason}")
            by_name[name].append(numbers)
        return list(by_name.values())

    def _numbers(self, features: Any) -> Sequence[Int64]:
        """The ids int64 [n] of each call; calls that take the same feature share an array."""
        if not self.calls:
            return []
        if self._sources is None:
            return self._computed(features)
        given = leaves(features)
        of = {
            place: given[place].reshape(-1).astype(np.int64, copy=False)
            for place in set(self._sources)
        }
        return [of[place] for place in self._sources]


def _changing(variable: Any) -> str | None:
    """A variable that training may change without a gradient, in words; None for constants."""
    changes = jnp.issubdtype(variable.dtype, jnp.floating)
    return f"the variable {variable.path}, which training may change" if changes else None
