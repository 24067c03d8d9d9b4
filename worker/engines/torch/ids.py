"""Which ids a module looks up: of which tables, in which calls, for given features.

Owns the one trace that says so, by torch.fx with symbolic sizes, and the search in it for what
the ids follow from. Ids that are features as they are, but for a shape, are read directly.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from shoal.base.nested import leaves, mapped, named_leaves
from shoal.errors import UserError
from shoal.torch.lookups import lookup_with
from shoal.worker.engines.torch.dense import is_state
from shoal.worker.engines.torch.lookups import Recording, sharing_refused
from shoal.worker.engines.torch.tensors import array_of, dtype_of
from shoal.worker.model.refusals import Refusals

Int64 = npt.NDArray[np.int64]

aten = torch.ops.aten

RESHAPING = frozenset(
    {
        *(aten.view.default, aten.reshape.default, aten._unsafe_view.default),
        *(aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims),
        *(aten.alias.default, aten.detach.default, aten.clone.default, aten._to_copy.default),
        *(aten.contiguous.default, aten.flatten.using_ints, aten.view_copy.default),
        *(aten.unsqueeze_copy.default, aten.squeeze_copy.default, aten.squeeze_copy.dim),
        *(aten.squeeze_copy.dims, aten.alias_copy.default, aten.detach_copy.default),
        *(aten._reshape_copy.default, aten.lift_fresh_copy.default),
    }
)
"""Operations that leave all numbers of their first input in their order."""

SHAPES = frozenset(
    {
        *(aten.sym_size.int, aten.sym_numel.default, aten.sym_stride.int),
        *(aten.zeros_like.default, aten.ones_like.default, aten.full_like.default),
        *(aten.empty_like.default, aten.new_zeros.default, aten.new_ones.default),
        *(aten.new_full.default, aten.new_empty.default),
    }
)
"""Operations that do not look at the values they are given."""

_DATA_DEPENDENT = (
    GuardOnDataDependentSymNode,
    torch._subclasses.fake_tensor.DataDependentOutputException,
    torch._subclasses.fake_tensor.DynamicOutputShapeException,
)


class TracedIds:
    """The lookups of a module.

    tables: the first embedding module of each table by the table's name, in the order of the tables
        on the servers.
    calls: the table of each call, in the order of the calls.
    frozen: the tables that no module trains.
    """

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
        self._of_sizes: dict[Any, torch.fx.GraphModule] | None = None

    # ------------------------------------------------------------ the trace

    def trace(self) -> None:
        """Trace the model. Raises what it raises, and UserError for ids that are refused."""
        self._dense = {
            **dict(self._model.named_parameters()),
            **dict(self._model.named_buffers()),
        }
        self._witnesses = {name: torch.zeros(()) for name in self._embeddings}
        records = _records(self._spec)
        traced, record = self._trace([sample_of(each, records) for each in leaves(self._spec)])
        self.calls = [each.table for each in record.tables]
        for each in record.tables:
            known = self.tables.setdefault(each.table, each)
            if (reason := sharing_refused(known, each)) is not None:
                self._refusals.refuse(f"{self._file}: {reason}")
        self.frozen = set(self.tables) - {each.table for each in record.tables if each.trainable}
        self._sources, self._traced = self._kept(traced)
        if None in self._sources and not self._holds_for(records + 1):
            # The module takes sizes as numbers, as len() does: a trace is of its sizes alone.
            self._of_sizes = {}

    def _trace(self, sample: Sequence[torch.Tensor]) -> tuple[torch.fx.GraphModule, Recording]:
        """The trace of a call with such features, and what was looked up in it."""
        records: list[Recording] = []

        def function(given: Any, values: Any, witnesses: Any) -> list[torch.Tensor]:
            record = Recording(self._refusals, witnesses)
            records.append(record)
            with lookup_with(record), torch.no_grad():
                try:
                    torch.func.functional_call(self._model, values, (self._nested(given),))
                except _DATA_DEPENDENT:
                    raise
                except Exception as error:  # of a part of PyTorch that cannot be traced
                    record.failed = error
            return record.ids

        given = list(sample), self._dense, self._witnesses
        with self._in_evaluation(), _untold():
            try:
                traced = make_fx(function, tracing_mode="symbolic")(*given)
                if _writes(traced.graph):
                    # As functions, so that what is written into a tensor is a source of its values.
                    function = torch.func.functionalize(function, remove="mutations_and_views")
                    traced = make_fx(function, tracing_mode="symbolic")(*given)
                self._complete(records[-1], sample)
            except _DATA_DEPENDENT as error:
                self._refusals.refuse(
                    f"{self._file}: forward() chooses what to compute by the values of a tensor "
                    f"({_line_of(error)}), so the ids that it looks up cannot be known before the "
                    "step: compute both, and choose with torch.where; or choose in feed_batch"
                )
        return traced, records[-1]

    def _complete(self, record: Recording, sample: Sequence[torch.Tensor]) -> None:
        """Raises what stopped a trace, unless all lookups came before it."""
        if record.failed is None:
            return
        eager = Recording(self._refusals, self._witnesses)
        with lookup_with(eager), torch.no_grad():
            self._model(self._nested(sample))
        if [each.table for each in eager.tables] != [each.table for each in record.tables]:
            raise record.failed

    def _nested(self, flat: Sequence[Any]) -> Any:
        left = iter(flat)
        return mapped(lambda _: next(left), self._spec)

    @contextmanager
    def _in_evaluation(self) -> Iterator[None]:
        """Have the model in evaluation mode in the body: statistics must not move there."""
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
        record = Recording(self._refusals, self._witnesses)
        with self._in_evaluation(), lookup_with(record), torch.no_grad():
            self._model(self._nested(sample))
        wanted = [
            ids for ids, source in zip(record.ids, self._sources, strict=False) if source is None
        ]
        try:
            found = self._computed(self._traced, sample)
        except (RuntimeError, IndexError):  # of an operation that was given other sizes
            return False
        return len(found) == len(wanted) and all(map(torch.equal, found, wanted))

    def _computed(
        self, traced: torch.fx.GraphModule, given: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The ids that a trace computes of features."""
        with torch.no_grad():
            return list(traced(*given, *self._dense.values(), *self._witnesses.values()))

    def _trace_for(self, given: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
        """The trace that holds for the sizes of these features."""
        if self._of_sizes is None:
            return self._traced
        sizes = tuple(tuple(each.shape) for each in given)
        if sizes not in self._of_sizes:
            traced, record = self._trace([torch.zeros_like(each) for each in given])
            if [each.table for each in record.tables] != self.calls:
                self._refusals.refuse(
                    f"{self._file}: forward() calls its embeddings otherwise for "
                    f"{sizes[0][0]} records than for others: it must call them alike"
                )
            _, self._of_sizes[sizes] = self._kept(traced)
        return self._of_sizes[sizes]

    def _kept(self, traced: torch.fx.GraphModule) -> tuple[list[int | None], torch.fx.GraphModule]:
        """Of each call the feature that its ids are, and a trace with what the others need.

        Raises UserError for ids that follow from what is not known before the step.
        """
        graph, dense, tables = traced.graph, [*self._dense], [*self._witnesses]
        (output,) = [node for node in graph.nodes if node.op == "output"]
        places = [node for node in graph.nodes if node.op == "placeholder"]
        count = len(self._names)
        origin = dict(zip(places, [*self._names, *dense, *tables], strict=True))
        outputs = list(output.args[0])
        for name, node in zip(self.calls, outputs, strict=True):
            sources = _values_of(node)
            for each in (each for each in graph.nodes if each in sources):
                if each in places[count + len(dense) :]:
                    self._refuse(name, f"the rows of table {origin[each]!r}")
                if each in places[count : count + len(dense)] and is_state(
                    self._dense[origin[each]]
                ):
                    self._refuse(name, f"{origin[each]}, which is being trained")
                if _draws(each):
                    self._refuse(name, "random numbers drawn inside the model")
        sources_of = self._sources or [_source(node, places[:count]) for node in outputs]
        output.args = (
            [node for node, source in zip(outputs, sources_of, strict=True) if source is None],
        )
        needed = _needed(output)
        for node in reversed(list(graph.nodes)):
            if node not in needed and node.op != "placeholder":
                graph.erase_node(node)
        graph.set_codegen(torch.fx.graph.CodeGen())  # flat: its arguments one after another
        traced.recompile()
        return sources_of, traced

    @property
    def operations(self) -> list[str]:
        """The operations that compute ids of features, by their names."""
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
        record = Recording(self._refusals, self._witnesses)
        with self._in_evaluation(), lookup_with(record), torch.no_grad():
            return self._model(features)

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
        computed = self._computed(self._trace_for(given), given) if None in self._sources else []
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
            if (reason := _out_of_range(self.tables[name], ids)) is not None:
                self._refusals.refuse(f"{self._file}: {reason}")
            by_name[name].append(ids)
        return list(by_name.values())


@contextmanager
def _untold() -> Iterator[None]:
    """Have PyTorch log no traceback of an error, which is told without a trace, in the body."""
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


def _line_of(error: BaseException) -> str:
    """Where forward() is in an error's traceback, as file and line."""
    found, at = "", error.__traceback__
    while at is not None:
        path = at.tb_frame.f_code.co_filename
        if "/torch/" not in path and "/shoal/" not in path and not path.startswith("<"):
            found = f"{path.rpartition('/')[2]}, line {at.tb_lineno}"
        at = at.tb_next
    return found or type(error).__name__


def _needed(node: torch.fx.Node) -> set[torch.fx.Node]:
    """A node and all that it is computed from, shapes too."""
    found, waiting = {node}, [node]
    while waiting:
        for each in waiting.pop().all_input_nodes:
            if each not in found:
                found.add(each)
                waiting.append(each)
    return found


def _values_of(node: torch.fx.Node) -> set[torch.fx.Node]:
    """A node and all whose values it is computed from."""
    found, waiting = {node}, [node]
    while waiting:
        each = waiting.pop()
        if each.target in SHAPES:
            continue
        for source in each.all_input_nodes:
            if source not in found:
                found.add(source)
                waiting.append(source)
    return found


def _writes(graph: torch.fx.Graph) -> bool:
    """True if a tensor that the outputs are computed from is written to."""
    (output,) = [node for node in graph.nodes if node.op == "output"]
    needed = _needed(output)
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        written = node.args[0]
        while isinstance(written, torch.fx.Node):
            if written in needed:
                return True
            of = getattr(written.target, "_schema", None)
            views = of is not None and any(each.alias_info for each in of.returns)
            written = written.args[0] if views and written.args else None
    return False


def _draws(node: torch.fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags


def _source(node: Any, features: list[torch.fx.Node]) -> int | None:
    """The position of the feature whose numbers a node has in their order; None for none."""
    while node not in features:
        if not isinstance(node, torch.fx.Node) or node.target not in RESHAPING:
            return None
        if node.target is aten._to_copy.default and node.kwargs.get("dtype") != torch.int64:
            return None
        node = node.args[0]
    return features.index(node)


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
