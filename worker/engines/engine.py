"""The engine of a worker as the rest of it knows one, in no framework's words.

Owns the Protocols. What crosses them is NumPy's, but for the arrays of a batch, of a prediction
and of a step's inputs: these are the engine's own, and nobody else looks into them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from shoal.proto import shoal_pb2 as pb

if TYPE_CHECKING:
    from shoal.config.groups.event_time import EventTime
    from shoal.data.columns import ListColumn
    from shoal.data.reader import DataReader
    from shoal.files.patience import Patience
    from shoal.worker.code.module import UserModule
    from shoal.worker.input.batch import Batch
    from shoal.worker.input.shuffling import Shuffled
    from shoal.worker.model.built import BuiltModel, ToBuild
    from shoal.worker.model.evaluation import Evaluation
    from shoal.worker.model.model import ServedModel
    from shoal.worker.model.refusals import Refusals
    from shoal.worker.outputs.export_tables import ExportedTable
    from shoal.worker.reports.progress import Progress
    from shoal.worker.servers.pulling import Pulled

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]

StepInputs = Any
"""The values that a step computes with, as `Steps.inputs` makes them of what was pulled."""


class InputPipeline(Protocol):
    """Batches of one kind of data, in the engine's arrays.

    features_spec, labels_spec, weights_spec: of a batch; None for what it does not have.
    """

    features_spec: Any
    labels_spec: Any
    weights_spec: Any

    @property
    def first_source(self) -> str:
        """The first source, by name."""

    def batches(self, records: pb.Range, shuffled: Shuffled | None = None) -> Iterator[Batch]:
        """The batches of a range, in order; of the shuffled one, if there is one."""

    def missing(self, source: str, record: int) -> list[str]:
        """The columns that are used and have no value in a record."""


class Ids(Protocol):
    """The ids that a model looks up, found before the step that uses their rows.

    tables: the first embedding layer of each table by the table's name, in the servers' order.
    frozen: the tables that no layer trains.
    """

    tables: dict[str, Any]
    frozen: set[str]

    def trace(self) -> None:
        """Find the lookups. Raises what the model raises, UserError for one that is refused."""

    def check(self) -> None:
        """Raise UserError if ids cannot be known from the features alone."""

    def by_table(self, features: Any) -> list[list[Int64]]:
        """For each table, the ids int64 [n] that each call looks up in `features`."""


class Dense(Protocol):
    """Dense variables of a model as one flat vector of `size`, in the order of the manifest."""

    variables: list[Any]
    manifest: list[pb.VariableSpec]
    size: int

    def read(self) -> Any:
        """The variables' values, an array float32 [size]."""

    def assign(self, flat: Float32) -> None:
        """Set the variables."""


class Steps(Protocol):
    """The training step and the prediction of a model whose values were pulled."""

    def inputs(self, pulled: Pulled) -> StepInputs:
        """The inputs of the other methods, made of what was pulled."""

    def train(
        self, batch: Batch, inputs: StepInputs, change: Float32 | None
    ) -> tuple[float, Float32, Float32, list[Float32]]:
        """Compute a step.

        change: to be added to the statistics that were pulled; None for none. Gives the loss, the
        gradient of the dense vector, the change of the statistics, and of each table the
        gradients of the rows that were pulled, float32 [unique, dim].
        """

    def predictions(self) -> tuple[Any, Any]:
        """The outputs that the last `train` trained on, as `predict` gives those.

        Of steps that keep them, and in training mode: with dropout, and the batch's own statistics.
        """

    def clip(self, dense: Float32, tables: Sequence[Float32]) -> tuple[Float32, list[Float32]]:
        """Clip the gradients of several steps, as `train` gives them."""

    def predict(self, features: Any, inputs: StepInputs) -> tuple[Any, Any]:
        """The model's outputs, and the losses of its layers, one number."""

    def trace_prediction(self, features_spec: Any) -> None:
        """Compile `predict` for batches of another spec. Raises what the model raises."""

    def predictions_spec(self) -> Any:
        """The spec of the outputs that `predict` gives."""


class Exporter(Protocol):
    """The forms of a model that an export has beside tables and dense values.

    kinds: those of --export, of which auto is all that the engine has.
    """

    @property
    def kinds(self) -> Set[str]:
        """By the names of --export."""

    def write(
        self, tables: Mapping[str, ExportedTable], folder: Path
    ) -> tuple[dict[str, str | None], dict[str, dict[str, str]]]:
        """Save the model with its tables, in each of the forms that it can have.

        Gives the name of each form's file or folder as the manifest has it, and, for each table
        whose vectors a form takes, the names of its inputs. Raises UserCodeError if the model can
        have none of them, or one fails that it can have, UserError for names that clash, and
        OSError.
        """

    def discard(self, folder: Path) -> None:
        """Remove what `write` has left there."""

    def lacking(self, tables: Mapping[str, ExportedTable]) -> list[str]:
        """The parts that an export with such tables lacks, in words.

        Raises UserError or UserCodeError if the model can have none of the forms.
        """

    def predictions(
        self, folder: Path, written: Mapping[str, str | None], features: Any
    ) -> Iterator[tuple[str, Any]]:
        """The name of each form that `write` has written, and its outputs for a batch."""


class Engine(Protocol):
    """A framework, as the rest of the worker uses it."""

    def pipeline(
        self,
        reader: DataReader,
        module: UserModule,
        mode: str,
        flag: str,
        batch_size: int,
        progress: Progress | None = None,
        patience: Patience | None = None,
        event_time: EventTime | None = None,
    ) -> InputPipeline:
        """The pipeline of the data that `flag` names. Raises UserError or UserCodeError."""

    def build(self, given: ToBuild) -> BuiltModel:
        """Build the model of a module, and find which ids it looks up.

        Raises UserError for a model that shoal cannot serve, UserCodeError if it raises.
        """

    def check_optimizer(self, module: UserModule) -> object:
        """Raise what the module's optimizer is refused with, where no model is needed to know."""

    @property
    def any_optimizer(self) -> Callable[..., Any]:
        """A function in place of the module's, which gives an optimizer that is served."""

    def check_features(self, model: Any, features_spec: Any, feed: str) -> None:
        """Raises UserError for features that a model cannot take. feed: what gives them."""

    def steps(
        self,
        built: BuiltModel,
        refusals: Refusals,
        labels_spec: Any,
        weights_spec: Any = None,
        *,
        clip_at_once: bool = True,
        keeps_predictions: bool = False,
    ) -> Steps:
        """The steps of a model, compiled at their first calls.

        labels_spec: None where nothing is trained. clip_at_once: whether the training step clips.
        keeps_predictions: for `Steps.predictions`. Raises UserError where a step has none.
        """

    def evaluator(self, model: ServedModel, module: UserModule) -> Evaluation:
        """The metrics of a module. Raises UserError if eval_metrics_fn() gives none."""

    def explained(
        self, error: BaseException | None, model: Any, module: Any, labels: Any
    ) -> str | None:
        """The explanation of a step's error, in the user's words; None for any other error."""

    def share_cores(self, processes: int) -> None:
        """Compute with this process's share of the cores, where so many like it have the same."""

    def kernel_layouts(self, model: Any, features_spec: Any) -> Any:
        """The `layouts` of a model's kernels and those `elsewhere`, as migration_terms has them."""

    def joined(self, parts: Sequence[Any]) -> npt.NDArray[Any] | ListColumn:
        """An output of several batches, one after the other."""

    def exporter(self, model: ServedModel, kinds: Set[str]) -> Exporter:
        """The forms of an export. kinds: as --export names them. Raises UserError for others."""
