"""`shoal plan`: in how many pushes of a sample of the training data each table's ids are.

    python -m shoal.worker.inspect.plan --config job.json --records 500000

Owns the sample, which is drawn by whole pushes, and what it says of the tables of a whole job. No
server runs. What to ask for is shoal/client/run/planning.py's.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from shoal.config.job import JobConfig
from shoal.data.samples.extrapolation import Expected, IdCounts
from shoal.native.optimizers import OptimizerSpec
from shoal.proto import shoal_pb2 as pb
from shoal.worker.engines import check_backend
from shoal.worker.inspect.check import INDEX_BYTES, row_bytes, telling_errors
from shoal.worker.servers.local import LocalServers

Int64 = npt.NDArray[np.int64]

ADMISSION = (1, 2, 3, 5)
"""Values of admit_after that are predicted beside the table's own."""

DTYPES = ("float32", "bfloat16", "float16")
"""Of rows, whose bytes are told."""

WINDOWS = (0.5, 0.1)
"""Shares of an epoch's pushes: rows that are left where older ones expire."""

HELD = 4_000_000
"""Ids of a table, from several pushes, that are held before their counts are joined."""


class _Seen:
    """In how many pushes each id of a table was."""

    def __init__(self) -> None:
        self._ids = np.zeros(0, np.int64)
        self._counts = np.zeros(0, np.int64)
        self._new: list[Int64] = []
        self._held = 0

    def add(self, ids: Int64) -> None:
        """The ids of one push, which are all different."""
        self._new.append(ids)
        self._held += ids.size
        if self._held > HELD:
            self._join()

    def _join(self) -> None:
        ids = np.concatenate([self._ids, *self._new])
        times = np.concatenate([self._counts, *(np.ones(e.size, np.int64) for e in self._new)])
        self._ids, places = np.unique(ids, return_inverse=True)
        self._counts = np.zeros(self._ids.size, np.int64)
        np.add.at(self._counts, places, times)
        self._new, self._held = [], 0

    def counts(self) -> Int64:
        """One number an id, in no order that means anything."""
        self._join()
        return self._counts


def pushes_of(sources: list[pb.Source], records: int) -> list[pb.Range]:
    """The ranges of records of all pushes of an epoch, each of at most `records`."""
    return [
        pb.Range(source=each.name, start=start, end=min(start + records, each.records))
        for each in sources
        for start in range(0, each.records, records)
    ]


def sample_of(count: int, wanted: int, seed: int) -> Int64:
    """Draw `wanted` numbers below `count` (or all), in order: one by chance from each part."""
    if wanted >= count:
        return np.arange(count)
    edges = np.linspace(0, count, wanted + 1)
    chance = np.random.default_rng(seed).random(wanted)
    return np.unique(np.floor(edges[:-1] + chance * np.diff(edges)).astype(np.int64))


def plan(config: JobConfig, records: int) -> dict[str, Any]:
    """Estimate the tables after the job of `config`, from a sample of about `records`.

    Raises UserError and UserCodeError as a job's first worker does.
    """
    from shoal.worker.code.module import load_module
    from shoal.worker.input.data import JobData
    from shoal.worker.model.model import ServedModel
    from shoal.worker.reports.progress import Progress

    module = load_module(config.model_zoo, config.model_def, config.model_params)
    check_backend()
    data = JobData(config, module)
    pipeline = data.pipeline("training")
    specs = (pipeline.features_spec, pipeline.labels_spec)
    servers: Any = LocalServers()
    weights_spec = pipeline.weights_spec
    model = ServedModel(config, module, servers, *specs, 0, Progress(), weights_spec=weights_spec)
    model.register()
    a_push = config.records_per_step
    ranges = pushes_of(list(data.description().training), a_push)
    chosen = sample_of(len(ranges), max(1, records // a_push), config.seed)
    seen = [_Seen() for _ in model.spec.tables]
    read = 0
    for place in chosen.tolist():
        ids: list[list[Int64]] = [[] for _ in seen]
        for batch in pipeline.batches(ranges[place]):
            for own, table in zip(ids, model.pull(batch.features, training=False).ids, strict=True):
                own.append(table.unique)
        for own, counter in zip(ids, seen, strict=True):
            if own:
                counter.add(np.unique(np.concatenate(own)))
        read += ranges[place].end - ranges[place].start
    dense_spec = OptimizerSpec.from_json(model.spec.dense_optimizer)
    return {
        "records": sum(each.end - each.start for each in ranges),
        "records_read": read,
        "pushes": len(ranges),
        "pushes_read": int(chosen.size),
        "epochs": config.epochs,
        "dense_bytes": 4 * (model.trainable.size * (1 + len(dense_spec.slot_names))),
        "tables": [
            _predicted(table, IdCounts(counter.counts(), int(chosen.size)), len(ranges), config)
            for table, counter in zip(model.spec.tables, seen, strict=True)
        ],
    }


def _predicted(
    table: pb.TableSpec, counts: IdCounts, pushes: int, config: JobConfig
) -> dict[str, Any]:
    """The forecast for a table: ids, rows by admission and by expiry, bytes a row by dtype."""

    def rows(admit_after: int) -> Expected:
        if table.frozen:
            return Expected(0, 0, 0)
        # Each epoch has the same pushes: an id is in `epochs` times as many as in one.
        a_pass = -(-admit_after // config.epochs)
        return counts.at_least(a_pass, pushes, table.vocabulary)

    own = max(table.admit_after, 1)
    bytes_a_row = {}
    for dtype in DTYPES:
        other = pb.TableSpec()
        other.CopyFrom(table)
        other.value_dtype = dtype
        bytes_a_row[dtype] = row_bytes(other)
    windows = {
        f"{share:g}": dataclasses.asdict(
            counts.at_least(1, max(1, round(pushes * share)), table.vocabulary)
        )
        for share in WINDOWS
        if not table.frozen
    }
    return {
        "name": table.name,
        "admit_after": own,
        "dtype": table.value_dtype or "float32",
        "row_bytes": row_bytes(table),
        "row_bytes_by_dtype": bytes_a_row,
        "counted_bytes": INDEX_BYTES,
        "sampled_ids": counts.distinct,
        "ids": dataclasses.asdict(rows(1)),
        "rows": dataclasses.asdict(rows(own)),
        "rows_by_admission": {str(k): dataclasses.asdict(rows(k)) for k in ADMISSION},
        "rows_by_window": windows,
    }


@click.command()
@click.option("--config", required=True, help="A job.json.")
@click.option("--records", required=True, type=int, help="Of the sample.")
def main(config: str, records: int) -> None:
    """Print what is predicted, as JSON; exit 2 where the user's input is wrong."""
    with telling_errors("plan", config) as job:
        click.echo(json.dumps(plan(job, records)))


if __name__ == "__main__":
    main()
