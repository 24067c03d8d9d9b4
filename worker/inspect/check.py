"""`shoal check`: what of a model would live where, what is unsupported, one batch tried.

    python -m shoal.worker.inspect.check --config job.json

Owns the inspection and its report. No server runs: rows and dense values are held in this
process (servers/local.py) by the code that servers run. The same classes as in a job do the
rest, so what passes here passes there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import click
import numpy as np

from shoal.base.garbage import lasting_imports
from shoal.base.modules.tracebacks import own_lines
from shoal.base.words import counted
from shoal.config.job import JobConfig
from shoal.config.table_options import told_options
from shoal.errors import EXIT_JOB_FAILED, EXIT_USER_ERROR, StorageError, UserCodeError, UserError
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec
from shoal.native.values import DTYPES
from shoal.proto import shoal_pb2 as pb
from shoal.worker.code.of_keras import is_of_keras
from shoal.worker.engines import check_backend, choose_engine_of, framework, import_framework
from shoal.worker.servers.local import LocalServers, store_of

INDEX_BYTES = 32
"""Of memory beside values and slots, a row of a table with millions of them: 16 are its entry in
the index (native/index.h), whose buckets are half full or more."""


def row_bytes(table: pb.TableSpec) -> int:
    """Bytes that a server keeps for one row of a large table: values, optimizer slots, index.

    Of some hundred thousand rows each takes up to half as much again, as memory is taken in
    large pieces.
    """
    store = store_of(table)
    values = table.dim * DTYPES[store.value_dtype].itemsize
    if store.slot_names:
        values += -values % 4  # slots are float32, and begin where one may
    return values + 4 * store.slot_width * len(store.slot_names) + INDEX_BYTES


@dataclass
class Report:
    """The findings of a check.

    lines: those of the report. warnings: likely mistakes that train all the same. faults: each
    one message, complete. tracebacks: of the user's code.
    """

    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Keep a fault of the body's instead of raising it."""
        try:
            yield
        except UserError as error:
            self._fault(str(error), "")
        except UserCodeError as error:
            self._fault(error.message, error.traceback)

    def _fault(self, message: str, traceback: str) -> None:
        if message not in self.faults:
            self.faults.append(message)
            self.tracebacks.append(traceback)


def inspect(config: JobConfig) -> Report:
    """Look at the module, the data and the model of `config`, and run one batch."""
    from shoal.worker.code.module import load_module

    report = Report()
    with report.noting():
        module = load_module(config.model_zoo, config.model_def, config.model_params)
        check_backend()
        _inspect(config, module, report)
    return report


def _inspect(config: JobConfig, module: Any, report: Report) -> None:
    from shoal.worker.engines import chosen_engine
    from shoal.worker.input.data import JobData
    from shoal.worker.model.model import ServedModel
    from shoal.worker.model.silent_mistakes import RECORDS, of_data
    from shoal.worker.outputs.export import check
    from shoal.worker.outputs.export_check import try_export
    from shoal.worker.outputs.prediction import check_processor
    from shoal.worker.reports.progress import Progress

    pipeline = None
    if config.training_data:
        with report.noting():
            data = JobData(config, module)
            pipeline = data.pipeline("training")
    with report.noting():
        if module.optimizer is not None:  # else the model is compiled with it
            chosen_engine().check_optimizer(module)
    if report.faults:
        # The model is looked at nevertheless: all faults at once.
        module = dataclasses.replace(module, optimizer=chosen_engine().any_optimizer)
    if module.prediction_outputs_processor is not None:
        with report.noting():
            check_processor(module.prediction_outputs_processor, module)
    if pipeline is not None:
        features_spec, labels_spec = pipeline.features_spec, pipeline.labels_spec
        weights_spec = pipeline.weights_spec
    elif config.training_data:
        return
    else:
        features_spec = labels_spec = weights_spec = None
    servers: Any = LocalServers()
    model = ServedModel(
        *(config, module, servers, features_spec, labels_spec, 0, Progress()),
        weights_spec=weights_spec,
    )
    if pipeline is not None:
        with report.noting():
            model.check_lifecycle()
    model.register()
    for position, pieces in model.given_rows():
        for ids, rows in pieces:
            servers.assign_rows(position, ids, rows)
    report.lines += _places(model, config)
    feed = module.describe(module.feed_name)
    if is_of_keras(model.model, "Model"):
        from shoal.worker.model.supported import rounded_features

        report.warnings += rounded_features(model.model, model.features_spec, feed)
    with report.noting():
        lacking = check(model, config)
        exporter = chosen_engine().exporter(model, config.export_kinds)
        kinds = ", ".join(sorted(exporter.kinds)) or "tables and dense values only"
        if config.export_dtype == "int8":
            lacking.insert(0, "rows are int8 values with a float32 scale a row")
        report.lines += ["", f"Export: {kinds}", *(f"  {each}" for each in lacking)]
    if pipeline is not None:
        batch = _try_batch(model, module, data, report)
        if config.validation_data and not report.faults:
            with report.noting():
                spec = data.pipeline("evaluation").features_spec
                model.check_features(spec, data.feed("evaluation"))
                later = _first_batch(module, data, "evaluation")
                report.lines.append(
                    f"  of {counted(later.size, 'record')} of the validation data: "
                    + _metrics(model, later)
                )
        if batch is not None and not report.faults:
            source, total = data.first_range("training", RECORDS), data.likely_records("training")
            batches = pipeline.batches(source)
            report.warnings += of_data(model, batches, source.source, total)
        if batch is not None and not report.faults:
            with report.noting():
                report.lines += try_export(model, config, servers, batch.features)


def _places(model: Any, config: JobConfig) -> list[str]:
    """The lines that tell where each part of the model lives."""
    lines = [f"Model {type(model.model).__name__} of {config.model_def}", ""]
    lines.append(f"On the parameter servers, by id ({len(model.tables)} tables):")
    for table, served in zip(model.spec.tables, model.tables.values(), strict=True):
        size = row_bytes(table)
        optimizer = OptimizerSpec.from_json(table.optimizer)
        slots = ", ".join(optimizer.slot_names) or "none"
        ids = f"ids 0 to {table.vocabulary - 1}" if table.vocabulary else "any int64 id"
        initializer = InitializerSpec.from_json(table.initializer)
        kind = "given rows" if initializer.given else initializer.kind
        total = (
            f"{_bytes(size * table.vocabulary)} with all rows"
            if table.vocabulary
            else f"{_bytes(size * 1_000_000)} per million ids"
        )
        values = f"{table.dim} {table.value_dtype} values".replace("  ", " ")
        lines += [
            f"  {table.name}: {type(served.layer).__name__} of {values}, {ids}, {kind} at first"
            + (", not trained" if table.frozen else ""),
            f"    {size} bytes a row with the slots of {optimizer.kind} ({slots}), {total}",
            *(f"    {each}" for each in told_options(table)),
        ]
    spec = OptimizerSpec.from_json(model.spec.dense_optimizer)
    dense_slots = store_of(
        pb.TableSpec(
            dim=1,
            optimizer=model.spec.dense_optimizer,
            initializer=InitializerSpec("zeros").to_json(),
        )
    ).slot_names
    size = model.trainable.size
    held = 4 * size * (1 + len(dense_slots))
    servers = counted(config.num_servers, "server")
    lines += [
        "",
        f"Dense, cut evenly over {servers}, and whole in each worker:",
        f"  {size:,} trained values in {len(model.trainable.variables)} variables, "
        f"{_bytes(4 * size)} in a worker, {_bytes(held)} on the servers ({spec.kind})",
        f"  {model.state.size:,} values that are not trained (statistics)",
    ]
    largest = sorted(model.trainable.variables, key=lambda each: -int(np.prod(each.shape)))[:3]
    lines += [f"    {each.path} {tuple(each.shape)}" for each in largest]
    return lines


def _bytes(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def _first_batch(module: Any, data: Any, mode: str) -> Any:
    """The first batch of the data of a mode. Raises UserError if it has none."""
    records = data.first_range(mode)
    batch = next(data.pipeline(mode).batches(records), None)
    if batch is None:
        raise UserError(
            f"{module.describe(module.feed_name)} gave no element for {records.end} records"
        )
    return batch


def _metrics(model: Any, batch: Any) -> str:
    """The metrics of a batch, in words."""
    from shoal.worker.engines import chosen_engine

    evaluator = chosen_engine().evaluator(model, model.module)
    evaluator.reset()
    evaluator.add(batch)
    metrics = evaluator.finish(evaluator.states())
    return ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())


def _try_batch(model: Any, module: Any, data: Any, report: Report) -> Any:
    """One training step and the metrics of one batch of the user's data; returns the batch."""
    from shoal.worker.model.silent_mistakes import noting_losses, of_loss

    batch = None

    with report.noting():
        batch = _first_batch(module, data, "training")
        # The first step is traced; the second tells what a step takes.
        with noting_losses(model) as traced:
            model.compute(model.prepare(batch), 0)
        began = time.perf_counter()
        loss, push = model.compute(model.prepare(batch), 0)
        seconds = time.perf_counter() - began
        ids = sum(each.size for each, _ in push.tables.values())
        report.lines += [
            "",
            f"One batch of {batch.size} records: loss {loss:.6g}, {ids} distinct ids, "
            f"{seconds * 1000:.1f} ms without servers",
        ]
        report.lines.append(
            f"  before any training, metrics of the batch: {_metrics(model, batch)}"
        )
        report.warnings += of_loss(model, batch, traced)
    return batch


def import_quietly(command: str, config: JobConfig) -> None:
    """Import the framework of a job; it stays quiet.

    TensorFlow tells of CPU features whatever its log level is. Where there is no such framework, it
    is told and the process ends with code 2.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    warnings.simplefilter("ignore")
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            with lasting_imports():
                choose_engine_of(config)
                import_framework()
                check_backend()
        except (ImportError, UserError) as error:
            os.dup2(kept, 2)
            text = str(error)
            if isinstance(error, ImportError):
                text = framework().missing(f"shoal {command} needs", error)
            click.echo(f"Error: {text}", err=True)
            sys.exit(EXIT_USER_ERROR)
        finally:
            os.dup2(kept, 2)
            os.close(kept)


@contextlib.contextmanager
def telling_errors(command: str, config: str) -> Iterator[JobConfig]:
    """Load a job.json and import its framework as `import_quietly` does, for the body.

    An error of any of them ends the process. It is told as users read it; the exit code is 1 if a
    disk fails, otherwise 2.
    """
    try:
        job = JobConfig.load(config)
        import_quietly(command, job)
        yield job
    except (UserError, StorageError) as error:
        # Reading what was saved is also what --restore-from does.
        click.echo(f"Error: {str(error).removeprefix('--restore-from: ')}", err=True)
        sys.exit(EXIT_USER_ERROR if isinstance(error, UserError) else EXIT_JOB_FAILED)
    except UserCodeError as error:
        click.echo(f"Error: {error.message}\n{own_lines(error.traceback)}".rstrip(), err=True)
        sys.exit(EXIT_USER_ERROR)


@click.command()
@click.option("--config", required=True, help="A job.json.")
def main(config: str) -> None:
    """Print the report of `shoal check`; exit 2 where there is a fault."""
    job = JobConfig.load(config)
    import_quietly("check", job)
    report = inspect(job)
    for line in report.lines:
        click.echo(line)
    for warning in report.warnings:
        click.echo(f"\nWarning: {warning}.")
    if not report.faults:
        click.echo("\nNothing unsupported was found.")
        return
    sys.stdout.flush()
    for fault, traceback in zip(report.faults, report.tracebacks, strict=True):
        click.echo(f"Error: {fault}", err=True)
        if lines := own_lines(traceback):
            click.echo(lines, err=True)
    sys.exit(EXIT_USER_ERROR)


if __name__ == "__main__":
    main()
