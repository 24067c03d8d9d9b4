"""Which ids a module looks up: of which tables, in which calls, for given features.

Owns the one trace that says so, by torch.fx with symbolic sizes; what the ids follow from in it is
graphs.py's to find. Ids that are features as they are, but for a shape, are read directly.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shoal.base.modules.tracebacks import line_of
from shoal.base.nested import leaves, mapped, named_leaves
from shoal.errors import UserError
from shoal.torch.lookups import lookup_with
from shoal.worker.code.module import summary
from shoal.worker.engines.host.float_ids import float_refused
from shoal.worker.engines.torch.dense import is_state
from shoal.worker.engines.torch.graphs import (
    cast_floats,
    draws,
    needed,
    source_of,
    values_of,
    writes,
)
from shoal.worker.engines.torch.lookups import Recording, sharing_refused
from shoal.worker.engines.torch.tensors import array_of, dtype_of
from shoal.worker.engines.torch.values import noting_values, place_of
from shoal.worker.model.refusals import Refusals

Int64 = npt.NDArray[np.int64]


class TracedIds:
    """The lookups of a module.

    tables: the first embedding module of each table by the table's name, in the order of the tables
        on the servers.
    calls: the table of each call, in the order of the calls.
    frozen: the tables that no module trains.

    forward: the user's method that calls embeddings, in words.
    """

    forward = "forward()"

    def __init__(
        self,
        model: torch.nn.Module,
        embeddings: Mapping[str, Any],
        features_spec: Any,
        refusals: Refusals,
        file: str,
    ) -> None:
        """Trace nothing yet.

        embeddings: one of each table, by its name. features_spec: nested ArraySpecs.
        """
        self._model, self._embeddings = model, embeddings
        self._spec, self._refusals, self._file = features_spec, refusals, file
        self._names = [name or "the features" for name, _ in named_leaves(features_spec)]
        self.calls: list[str] = []
        self.tables: dict[str, Any] = {}
        self.frozen: set[str] = set()
        self._sources: list[int | None] = []
        self._traced: Any = None  # where any ids are computed
        # The features of whose floats any ids are made, of each of the trace's last outputs.
        self._floats: list[str] = []
        self._of_sizes: dict[Any, torch.fx.GraphModule] | None = None

    # ------------------------------------------------------------ the trace

    def trace(self) -> None:
        """Trace the model. Raises what it raises, and UserError for ids that are refused."""
        self._dense = self._values()
        self._witnesses = {name: torch.zeros(()) for name in self._embeddings}
        records = _records(self._spec)
        sample = [sample_of(each, records) for each in leaves(self._spec)]
        traced: Any = None
        record, sources = self._read_directly(sample)
        if sources is None:
            traced, record = self._trace(sample)
        self.calls = [each.table for each in record.tables]
        for each in record.tables:
            known = self.tables.setdefault(each.table, each)
            if (reason := self._sharing_refused(known, each)) is not None:
                self._refusals.refuse(f"{self._file}: {reason}")
        self.frozen = set(self.tables) - {each.table for each in record.tables if each.trainable}
        if sources is not None:
            self._sources = list(sources)
            return
        self._sources, self._traced = self._kept(traced)
        if self._is_computed and not self._holds_for(records + 1):
            # The module takes sizes as numbers, as len() does: a trace is of its sizes alone.
            self._of_sizes = {}
            self._model = self._copied()

    # ------------------------------------------------------------ calls of the model

    def _values(self) -> dict[str, torch.Tensor]:
        """The model's values beside the tables, by their names."""
        return {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}

    def _copied(self) -> Any:
        """A copy of the model, to be traced while another thread trains the model."""
        return copy.deepcopy(self._model)

    def _recording(self) -> Any:
        """A lookup that notes calls."""
        return Recording(self._refusals, self._witnesses)

    def _looking_up(self, lookup: Any) -> AbstractContextManager[None]:
        """A context in which embeddings ask `lookup`."""
        return lookup_with(lookup)

    def _called(self, features: Any) -> Any:
        """The outputs of a call."""
        return self._model(features)

    def _called_with(self, values: dict[str, torch.Tensor], features: Any) -> Any:
        """The outputs of a call with other values in the place of those of `_values`."""
        return torch.func.functional_call(self._model, values, (features,))

    def _sharing_refused(self, first: Any, second: Any) -> str | None:
        return sharing_refused(first, second)

    def _out_of_range(self, table: Any, ids: Int64) -> str | None:
        return _out_of_range(table, ids)

    # ------------------------------------------------------------ what the trace finds

    def _read_directly(self, sample: Sequence[torch.Tensor]) -> tuple[Recording, list[int] | None]:
        """The lookups of a plain call, and the feature that the ids of each are.

        None instead of the features if any ids are no feature as it is, a feature is written to, or
        the call looks at a value: then a trace has to tell. A trace takes seconds of processor time
        and its imports, which most models need not spend.
        """
        with noting_values() as looked_at:
            try:
                record = self._record(sample)
            except UserError:
                raise
            except Exception:  # the trace tells of it
                return self._recording(), None
        found = [place_of(ids, sample) for ids in record.ids]
        written = any(each._version for each in sample)
        if looked_at or written or None in found:
            return record, None
        return record, [place for place in found if place is not None]

    def _trace(self, sample: Sequence[torch.Tensor]) -> tuple[torch.fx.GraphModule, Recording]:
        """The trace of a call with such features, and what was looked up in it."""
        # Late: they take a second of processor time, and 100 MB with what they import.
        from torch._subclasses.fake_tensor import (
            DataDependentOutputException,
            DynamicOutputShapeException,
        )
        from torch.fx.experimental.proxy_tensor import make_fx
        from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

        by_values = (
            *(GuardOnDataDependentSymNode, DataDependentOutputException),
            DynamicOutputShapeException,
        )
        records: list[Recording] = []

        def function(given: Any, values: Any, witnesses: Any) -> list[torch.Tensor]:
            record = self._recording()
            record.witnesses = witnesses
            records.append(record)
            with self._looking_up(record), torch.no_grad():
                try:
                    self._called_with(values, self._nested(given))
                except by_values:
                    raise
                except Exception as error:  # of any operation that cannot be traced
                    record.failed = error
            ids: list[torch.Tensor] = record.ids
            return ids

        given = list(sample), self._dense, self._witnesses
        with self._in_evaluation(), _untold():
            try:
                traced = make_fx(function, tracing_mode="symbolic")(*given)
                if writes(traced.graph):
                    # As functions, so that what is written into a tensor is a source of its values.
                    function = torch.func.functionalize(function, remove="mutations_and_views")
                    traced = make_fx(function, tracing_mode="symbolic")(*given)
                self._complete(records[-1], sample)
            except by_values as error:
                self._refusals.refuse(
                    f"{self._file}: {self.forward} chooses what to compute by the values of a "
                    f"tensor ({_place(error)}), so the ids that it looks up cannot be known "
                    "before the step: compute both, and choose with torch.where; or choose in "
                    "feed_batch"
                )
        return traced, records[-1]

    def _complete(self, record: Recording, sample: Sequence[torch.Tensor]) -> None:
        """Raises UserError for what stopped a trace, unless all lookups came before it."""
        if record.failed is None:
            return
        eager = self._record(sample)  # which raises the user's own
        if isinstance(record.failed, UserError):
            raise record.failed
        if [each.table for each in eager.tables] != [each.table for each in record.tables]:
            self._refusals.refuse(
                f"{self._file}: {self.forward} cannot be traced, by which shoal finds ids before "
                f"the step ({summary(record.failed)}, {_place(record.failed)}): compute with "
                "operations of PyTorch, and what takes NumPy or Python's numbers in feed_batch"
            )

    def _record(self, sample: Sequence[torch.Tensor]) -> Recording:
        """The lookups of a plain call with such features."""
        record: Recording = self._recording()
        with self._in_evaluation(), self._looking_up(record), torch.no_grad():
            self._called(self._nested(sample))
        return record

    def _nested(self, flat: Sequence[Any]) -> Any:
        left = iter(flat)
        return mapped(lambda _: next(left), self._spec)

    @contextmanager
    def _in_evaluation(self) -> Iterator[None]:
        """A context with the model in evaluation mode: statistics must not move there."""
        training = self._model.training
        # Of model.compile(), which no trace can have.
        compiled = [each for each in self._model.modules() if each._compiled_call_impl is not None]
        calls = [each._compiled_call_impl for each in compiled]
        self._model.eval()
        try:
            for each in compiled:
                each._compiled_call_impl = None
            yield
        finally:
            self._model.train(training)
            for each, call in zip(compiled, calls, strict=True):
                each._compiled_call_impl = call

    def _holds_for(self, records: int) -> bool:
        """True if the trace gives the ids of zeros for another number of records, too."""
        sample = [sample_of(each, records) for each in leaves(self._spec)]
        wanted = [
            ids
            for ids, source in zip(self._record(sample).ids, self._sources, strict=False)
            if source is None
        ]
        try:
            found = self._computed(self._traced, sample)
        except (RuntimeError, IndexError):  # of an operation that was given other sizes
            return False
        return len(found) == len(wanted) and all(map(torch.equal, found, wanted))

    def _computed(
        self, traced: torch.fx.GraphModule, given: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The ids that a trace computes of features. Raises UserError for floats that are none."""
        with torch.no_grad():
            found = list(traced(*given, *self._dense.values(), *self._witnesses.values()))
        count = self._sources.count(None)
        for name, floats in zip(self._floats, found[count:], strict=True):
            if (reason := float_refused(name, array_of(floats))) is not None:
                self._refusals.refuse(f"{self._file}: {reason}")
        return found[:count]

    @property
    def _is_computed(self) -> bool:
        """True if the trace is needed for a batch."""
        return None in self._sources or bool(self._floats)

    def _trace_for(self, given: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
        """The trace that holds for the sizes of these features."""
        if self._of_sizes is None:
            return self._traced
        sizes = tuple(tuple(each.shape) for each in given)
        if sizes not in self._of_sizes:
            traced, record = self._trace([torch.zeros_like(each) for each in given])
            if [each.table for each in record.tables] != self.calls:
                self._refusals.refuse(
                    f"{self._file}: {self.forward} calls its embeddings otherwise for "
                    f"{sizes[0][0]} records than for others: it must call them alike"
                )
            _, self._of_sizes[sizes] = self._kept(traced)
        return self._of_sizes[sizes]

    def _kept(self, traced: torch.fx.GraphModule) -> tuple[list[int | None], torch.fx.GraphModule]:
        """The feature that the ids of each call are, and a trace with what the others need.

        Raises UserError for ids that follow from what is not known before the step.
        """
        graph, dense, tables = traced.graph, [*self._dense], [*self._witnesses]
        (output,) = [node for node in graph.nodes if node.op == "output"]
        places = [node for node in graph.nodes if node.op == "placeholder"]
        count = len(self._names)
        origin = dict(zip(places, [*self._names, *dense, *tables], strict=True))
        outputs = list(output.args[0])
        for name, node in zip(self.calls, outputs, strict=True):
            sources = values_of(node)
            for each in (each for each in graph.nodes if each in sources):
                if each in places[count + len(dense) :]:
                    self._refuse(name, f"the rows of table {origin[each]!r}")
                if each in places[count : count + len(dense)] and is_state(
                    self._dense[origin[each]]
                ):
                    self._refuse(name, f"{origin[each]}, which is being trained")
                if draws(each):
                    self._refuse(name, "random numbers drawn inside the model")
        sources_of = self._sources or [source_of(node, places[:count]) for node in outputs]
        floats = cast_floats(outputs, places[:count])
        self._floats = [self._names[feature] for _, feature in floats]
        computed = [
            node for node, source in zip(outputs, sources_of, strict=True) if source is None
        ]
        output.args = ([*computed, *(node for node, _ in floats)],)
        kept = needed(output)
        for node in reversed(list(graph.nodes)):
            if node not in kept and node.op != "placeholder":
                graph.erase_node(node)
        graph.set_codegen(torch.fx.graph.CodeGen())  # flat: its arguments one after another
        traced.recompile()
        return sources_of, traced

    @property
    def operations(self) -> list[str]:
        """The operations that compute ids of features, by their names."""
        if self._traced is None:
            return []
        return [str(each.target) for each in self._traced.graph.nodes if each.op == "call_function"]

    def _refuse(self, table: str, what: str) -> None:
        raise UserError(
            f"{self._file}: the ids of embedding {table!r} are computed from {what}: shoal looks "
            "ids up before the step, so they must follow from the features alone; compute them in "
            "feed_batch"
        )

    def outputs_of_sample(self, features_spec: Any) -> Any:
        """The module's outputs for a few records of zeros whose rows are zeros."""
        records = _records(features_spec)
        features = mapped(lambda each: sample_of(each, records), features_spec)
        with self._in_evaluation(), self._looking_up(self._recording()), torch.no_grad():
            return self._called(features)

    def check(self) -> None:
        """Nothing more: `trace` has refused what must be."""

    # ------------------------------------------------------------ the ids of a batch

    def of_calls(self, features: Any) -> list[Int64]:
        """The ids int64 [n] of each call; calls that take the same feature share an array."""
        given = leaves(features)
        direct = {
            source: array_of(given[source]).reshape(-1).astype(np.int64, copy=False)
            for source in set(self._sources)
            if source is not None
        }
        computed = self._computed(self._trace_for(given), given) if self._is_computed else []
        left = iter(computed)
        return [
            # A column of a feature is a view with gaps.
            np.ascontiguousarray(array_of(next(left))) if source is None else direct[source]
            for source in self._sources
        ]

    def by_table(self, features: Any) -> list[list[Int64]]:
        """For each table, the ids int64 [n] that each call looks up in `features`.

        Raises UserError for an id that a table cannot have.
        """
        by_name: dict[str, list[Int64]] = {name: [] for name in self.tables}
        for name, ids in zip(self.calls, self.of_calls(features), strict=True):
            if (reason := self._out_of_range(self.tables[name], ids)) is not None:
                self._refusals.refuse(f"{self._file}: {reason}")
            by_name[name].append(ids)
        return list(by_name.values())


@contextmanager
def _untold() -> Iterator[None]:
    """A context in which PyTorch logs no traceback of an error, which is told without a trace."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _records(spec: Any) -> int:
    """A number of records for a trace, that no other size of the features is."""
    sizes = {size for each in leaves(spec) for size in each.shape}
    return next(size for size in (11, 13, 17, 19, 23, 29, 31, 37) if size not in sizes)


def sample_of(spec: Any, records: int) -> torch.Tensor:
    """Zeros of a spec, for a number of records."""
    shape = [records if size is None else size for size in spec.shape]
    return torch.from_numpy(np.zeros(shape, dtype_of(spec.dtype)))


def _place(error: BaseException) -> str:
    return line_of(error) or "in a library"


def _out_of_range(table: Any, ids: Int64) -> str | None:
    """The id that a table with a number of ids cannot have, in words; None if there is none."""
    count = table.vocabulary
    if not count or not ids.size or (ids.min() >= 0 and ids.max() < count):
        return None
    wrong = int(ids[(ids < 0) | (ids >= count)][0])
    return (
        f"embedding {table.name!r} was given the id {wrong}: its ids go from 0 to {count - 1} "
        f"(num_embeddings={count}); map the ids in feed_batch, or use shoal.torch.Embedding, "
        "which takes any int64"
    )
