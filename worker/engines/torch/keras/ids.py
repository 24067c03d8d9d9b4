"""Which ids a model of Keras looks up, found as those of a module are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import keras
import torch

from shoal.base.nested import leaves, mapped
from shoal.layers import lookup_with
from shoal.worker.code.keras_internals import drawing_without_generators, taken_features
from shoal.worker.engines.torch.ids import Int64, TracedIds, sample_of
from shoal.worker.engines.torch.keras.lookups import KerasRecording
from shoal.worker.engines.torch.tensors import array_of
from shoal.worker.model.embeddings.integers import cast_features, not_kept
from shoal.worker.model.embeddings.keras_embeddings import out_of_range
from shoal.worker.model.embeddings.sharing import sharing_refused
from shoal.worker.model.refusals import Refusals


class KerasIds(TracedIds):
    """The lookups of a model of Keras; tables are the first embedding layers of each."""

    forward = "call()"

    def __init__(self, model: Any, features_spec: Any, refusals: Refusals, file: str) -> None:
        """Trace nothing yet. features_spec: nested ArraySpecs."""
        super().__init__(model, {}, features_spec, refusals, file)
        self._cast = cast_features(model, features_spec)

    def trace(self) -> None:
        """See there. A model that was not called yet is built first, by a call."""
        self._witnesses: dict[str, torch.Tensor] = {}
        record = self._record([sample_of(each, 2) for each in leaves(self._spec)])
        self._embeddings = {each.table: each for each in record.tables}
        super().trace()

    def by_table(self, features: Any) -> list[list[Int64]]:
        """See there. Raises UserError, too, for a feature that no integer input can have."""
        if self._cast:
            reason = not_kept(mapped(array_of, features), self._cast)
            if reason is not None:
                self._refusals.refuse(f"{self._file}: {reason}")
        return super().by_table(features)

    def _values(self) -> dict[str, torch.Tensor]:
        return {f"the variable {e.path}": e.value for e in self._model.variables}

    def _copied(self) -> NoReturn:
        self._refusals.refuse(
            f"{self._file}: call() computes ids of sizes that it takes as numbers, so each size of "
            "a batch would have others: take them by keras.ops.shape, or compute the ids in "
            "feed_batch"
        )

    def _recording(self) -> KerasRecording:
        return KerasRecording(self._refusals, self._witnesses)

    def _looking_up(self, lookup: Any) -> AbstractContextManager[None]:
        return lookup_with(lookup)

    @contextmanager
    def _in_evaluation(self) -> Iterator[None]:
        yield  # each call tells

    def _called(self, features: Any) -> Any:
        return self._model(taken_features(self._model, features), training=False)

    def _called_with(self, values: dict[str, torch.Tensor], features: Any) -> Any:
        pairs = list(zip(self._model.variables, values.values(), strict=True))
        with keras.StatelessScope(state_mapping=pairs), drawing_without_generators():
            return self._called(features)

    def _sharing_refused(self, first: Any, second: Any) -> str | None:
        return sharing_refused(first, second)

    def _out_of_range(self, table: Any, ids: Int64) -> str | None:
        return out_of_range(table, ids)
