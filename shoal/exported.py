"""The export of a job, for use in a program: its tables, its Keras model, its predictions."""

from __future__ import annotations

import contextlib
import functools
import pickle
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.base.disk.job_folder import JobFolder
from shoal.base.modules.by_value import FEATURES, PICKLE, Kept, Parts, classes_of, python_version
from shoal.base.modules.libraries import library
from shoal.base.words import near, shown
from shoal.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from shoal.checkpoints.formats.export_schema import ExportTable
    from shoal.checkpoints.saved import Export
    from shoal.data import Column

BATCH = 4096
"""Records that are predicted at once."""

SERVING = "serving_default"
"""The signature of a SavedModel that predicts."""


class Exported:
    """The export of a training job.

    output: its folder. job_dir: that of the job, which has the classes of a model that was given
    by value. Raises UserError if it is not a whole export.
    """

    def __init__(self, output: str, job_dir: Path) -> None:
        # Late: few have use for it.
        from shoal.checkpoints.saved import Export

        self._output, self._folder = output, JobFolder(job_dir)
        self._export: Export = Export(output)

    def _table(self, name: str) -> ExportTable:
        tables = {each["name"]: each for each in self._export.manifest["tables"]}
        if name not in tables:
            raise UserError(
                f"there is no table {name}{near(name, tables)}; there are {', '.join(tables)}"
            )
        return tables[name]

    def table(self, name: str) -> pa.Table:
        """See JobResult.table."""
        import pyarrow as pa

        found = self._table(name)
        kind = pa.list_(pa.float32(), found["dim"])
        pieces = [
            pa.table(
                {"id": ids, "vector": pa.FixedSizeListArray.from_arrays(rows.ravel(), type=kind)}
            )
            for ids, rows in self._export.rows(name, found["dim"])
        ]
        schema = pa.schema({"id": pa.int64(), "vector": kind})
        return pa.concat_tables([schema.empty_table(), *pieces])

    def embedding(self, name: str, ids: Any) -> npt.NDArray[np.float32]:
        """See JobResult.embedding."""
        import numpy as np

        from shoal.native.strings import string_ids

        found = self._table(name)
        wanted = np.asarray(ids)
        if wanted.size and all(isinstance(each, str | bytes) for each in wanted.flat):
            wanted = string_ids(wanted)
        if wanted.dtype.kind not in "iu":
            raise UserError(f"ids must be integers or strings, not {wanted.dtype}")
        distinct, places = np.unique(wanted.ravel().astype(np.int64), return_inverse=True)
        rows = np.tile(np.array(found["default"], np.float32), (len(distinct), 1))
        for some, values in self._export.rows(name, found["dim"]):
            at = np.minimum(np.searchsorted(distinct, some), max(len(distinct) - 1, 0))
            known = distinct[at] == some if len(distinct) else np.zeros(len(some), bool)
            rows[at[known]] = values[known]
        return rows[places].reshape(*wanted.shape, found["dim"])

    def keras_model(self) -> Any:
        """See JobResult.load."""
        manifest = self._export.manifest
        name = manifest["keras"]
        if name is None and manifest.get("program") is not None:
            return self._torch("load()").load(self._output)
        if name is None and manifest.get("state_dict") is not None:
            raise UserError(
                f"{self._output} has a state_dict and no model.pt2: call "
                f"shoal.torch.load({self._output!r}, MODEL) with an object of the model's class"
            )
        if name is None:
            raise UserError(
                f"{self._output} has no Keras model"
                + (", but a SavedModel, with which predict() works" * bool(manifest["saved_model"]))
                + ": the report of shoal check says why"
            )
        keras = library("keras", "load()", "'shoal[cpu]'")
        given = self._folder.given / PICKLE
        return keras.saving.load_model(
            Path(self._output, name), _classes_in(given) if given.is_file() else None
        )

    @staticmethod
    def _torch(what: str) -> Any:
        """The module that reads exports of PyTorch's modules. Raises UserError if it is missing."""
        library("torch", what, "'shoal[torch]'")
        return library("shoal.torch.exported", what, "'shoal[torch]'")

    # ------------------------------------------------------------ predictions

    def predict(self, features: Any) -> Any:
        """See JobResult.predict."""
        import numpy as np

        manifest = self._export.manifest
        if manifest.get("program") is not None:
            return self._by_torch(features)
        tensorflow = library("tensorflow", "predict()", "'shoal[cpu]'")
        if (name := manifest["saved_model"]) is not None:
            stamp = f"{manifest['job_id']} {manifest['version']}"
            predict, specs = self._served(_saved_model(str(Path(self._output, name)), stamp))
        else:
            predict, specs = self._by_keras(tensorflow)
        batches = (_inputs(tensorflow, columns, specs) for columns in self._batches(features))
        outputs = predict(batches)
        joined = tensorflow.nest.map_structure(lambda *parts: np.concatenate(parts), *outputs)
        single = isinstance(joined, Mapping) and [*joined] == ["output"]
        return joined["output"] if single else joined

    def _served(self, saved: Any) -> tuple[Any, dict[str, Any]]:
        """Predicts batches of inputs by a SavedModel; and the inputs of the model by name."""
        serving = saved.signatures[SERVING]
        large = {
            each["name"]: each["signature"]
            for each in self._export.manifest["tables"]
            if not each["in_models"]
        }
        given = {each["vectors"] for each in large.values()}
        specs = serving.structured_input_signature[1]

        def predict(batches: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
            if large:
                batches = self._with_vectors(list(batches), saved.signatures["ids"], large)
            return [
                {name: each.numpy() for name, each in serving(**inputs).items()}
                for inputs in batches
            ]

        return predict, {name: spec for name, spec in specs.items() if name not in given}

    def _with_vectors(
        self, batches: list[dict[str, Any]], ids_of: Any, large: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Batches with the vectors of tables that no model holds. A table's file is read once."""
        import numpy as np

        wanted = [ids_of(**inputs) for inputs in batches]
        for table, names in large.items():
            ids = [each[names["ids"]].numpy() for each in wanted]
            distinct = np.unique(np.concatenate([each.ravel() for each in ids]))
            rows = self.embedding(table, distinct)
            batches = [
                inputs | {names["vectors"]: rows[np.searchsorted(distinct, each)]}
                for inputs, each in zip(batches, ids, strict=True)
            ]
        return batches

    def _by_torch(self, features: Any) -> Any:
        """Predictions of a module of PyTorch, by its model.pt2."""
        import numpy as np

        from shoal.base.nested import mapped

        program = self._torch("predict()").Program(self._output)
        outputs = [
            program({name: _array(name, dims, columns) for name, dims in program.dims.items()})
            for columns in self._batches(features)
        ]
        return mapped(lambda *parts: np.concatenate(parts), *outputs)

    def _by_keras(self, tensorflow: Any) -> tuple[Any, dict[str, Any]]:
        """The result of `_served`, computed by the Keras model."""
        model = self.keras_model()
        inputs = getattr(model, "inputs", None)
        if not inputs:
            raise UserError(
                f"predict() cannot tell the inputs of this model: call load() and the model, or "
                f"export a SavedModel: shoal export {self._folder.path} --output FOLDER"
            )
        specs = {each.name: tensorflow.TensorSpec(each.shape, each.dtype) for each in inputs}

        def predict(batches: Iterable[dict[str, Any]]) -> list[Any]:
            outputs = [
                model(given if len(given) > 1 else next(iter(given.values())), training=False)
                for given in batches
            ]
            return list(tensorflow.nest.map_structure(lambda each: each.numpy(), outputs))

        return predict, specs

    def _batches(self, features: Any) -> Iterator[dict[str, Column]]:
        """Columns as a job reads them. Raises UserError as `write_data`."""
        # Late: they are as large as all of shoal.data.
        import numpy as np
        import pyarrow.parquet as pq

        from shoal.config.groups.data_format import DataFormat
        from shoal.config.job import JobConfig

        # By their names: a master, which must not load them, reads results.
        data, frames = (
            library(name, "predict()", "'shoal[cpu]'")
            for name in ("shoal.data", "shoal.data.frames")
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "features.parquet")
            if isinstance(features, np.ndarray):
                features = {FEATURES: features}
            frames.write_data("features", features, path, lambda _: None)
            there = pq.read_schema(path).names
            data_format = DataFormat()
            with contextlib.suppress(UserError):  # the job's folder may be elsewhere
                trained = JobConfig.load(self._folder.config).format_of_data
                data_format = DataFormat(
                    fill=tuple(each for each in trained.fill if each[0] in there),
                    masks=tuple(each for each in trained.masks if each in there),
                )
            reader = data.open_reader(str(path), "features", data_format=data_format)
            for source in reader.sources():
                chunks = data.read_columns(reader, source.name, 0, source.records)
                yield from data.minibatches(chunks, BATCH)


@functools.lru_cache(maxsize=1)
def _saved_model(path: str, stamp: str) -> Any:
    """The SavedModel in a folder. stamp: differs if another one takes its place."""
    del stamp
    tensorflow = library("tensorflow", "predict()", "'shoal[cpu]'")
    return tensorflow.saved_model.load(path)


def _array(name: str, dims: int, columns: Mapping[str, Column]) -> Any:
    """A column as the array of a feature with so many axes. Raises UserError if it is none."""
    from shoal.native.strings import string_ids

    if name not in columns:
        raise UserError(
            f"features have no column {name!r}{near(name, columns)}, which the model takes"
        )
    column: Any = columns[name]
    if hasattr(column, "row_lengths"):
        lengths = set(column.row_lengths.tolist())
        if dims != 2 or len(lengths) > 1:
            raise UserError(
                f"column {name!r} has lists of several lengths, and the model takes arrays: call "
                "load() and the model"
            )
        column = column.padded(max(lengths, default=0))
    return string_ids(column) if column.dtype.kind in "OSU" else column


def _inputs(tf: Any, columns: Mapping[str, Column], specs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of the model, of the columns of their names. Raises UserError as `_tensor`.

    A signature has the parts of a RaggedTensor as inputs: NAME_values and NAME_row_splits.
    """
    given: dict[str, Any] = {}
    for first in specs.keys() - columns.keys():
        if (name := first.removesuffix("_values")) == first:
            continue
        splits = re.compile(rf"{re.escape(name)}_row_splits(_\d+)?")
        own = [first, *sorted(each for each in specs if splits.fullmatch(each))]
        if len(own) == 1:
            continue
        kind, index = specs[first].dtype, specs[own[1]].dtype
        spec = tf.RaggedTensorSpec([None] * len(own), kind, len(own) - 1, index)
        value = _tensor(tf, columns, name, {**specs, name: spec})
        given |= zip(own, tf.nest.flatten(value, expand_composites=True), strict=True)
    return given | {name: _tensor(tf, columns, name, specs) for name in specs.keys() - given.keys()}


def _tensor(tf: Any, columns: Mapping[str, Column], name: str, specs: Mapping[str, Any]) -> Any:
    """An input of the model, of the column of its name, or of the only one.

    Raises UserError if there is none, or if the model cannot take it.
    """
    if name not in columns and len(specs) == 1 and len(columns) == 1:
        (column,) = columns.values()
    elif name not in columns and len(specs) == 1:
        raise UserError("features: the model has one input, so give its column alone")
    elif name not in columns:
        raise UserError(
            f"features: there is no column {shown(name)}{near(name, columns)}, which the model "
            f"takes; it takes {', '.join(specs)}. Those are what feed or feed_batch gives, which "
            "predict() does not call: shoal.predict(restore_from=result, ...) does"
        )
    else:
        column = columns[name]
    spec, value = specs[name], _of_column(tf, column)
    ragged = isinstance(spec, tf.RaggedTensorSpec)
    if ragged and value.shape.rank == 2:
        if not isinstance(value, tf.RaggedTensor):
            value = tf.RaggedTensor.from_tensor(value)
        value = value.with_row_splits_dtype(spec.row_splits_dtype)
    elif not ragged and isinstance(value, tf.RaggedTensor) and value.ragged_rank == 1:
        # Lists of a DataFrame may have one length, which their type does not tell.
        if len(set(value.row_lengths().numpy())) == 1:
            value = value.to_tensor()
    elif not ragged and spec.shape.rank == 2 and value.shape.rank == 1:
        value = value[:, None]
    if value.dtype != spec.dtype and tf.string not in (value.dtype, spec.dtype):
        value = tf.cast(value, spec.dtype)
    if not spec.is_compatible_with(value):
        raise UserError(
            f"features: the column {shown(name)} is {_form(tf, value)}, and the model takes "
            f"{_form(tf, spec)}"
        )
    return value


def _of_column(tf: Any, column: Any) -> Any:
    if hasattr(column, "row_lengths"):
        return tf.RaggedTensor.from_row_lengths(_of_column(tf, column.values), column.row_lengths)
    return tf.constant(column, tf.string) if column.dtype == object else tf.constant(column)


def _form(tf: Any, value: Any) -> str:
    ragged = isinstance(value, tf.RaggedTensor | tf.RaggedTensorSpec)
    lists = " (lists of several lengths)" if ragged else ""
    return f"{value.dtype.name} of shape {value.shape}{lists}"


def _classes_in(path: Path) -> dict[str, Any]:
    """The classes and functions, by Keras's names, of a model that was given by value.

    In the program that gave it they are the program's own. Raises UserError for a file that this
    Python cannot read.
    """
    kept: Kept = pickle.loads(path.read_bytes())
    if kept.python != python_version():
        raise UserError(
            f"the model was given by value by Python {kept.python}: call load() with it, as Python "
            f"{python_version()} cannot read its classes"
        )
    parts: Parts = pickle.loads(kept.parts)
    found = dict(parts.custom_objects)
    return found if parts.model is None else found | dict(classes_of(parts.model()))
