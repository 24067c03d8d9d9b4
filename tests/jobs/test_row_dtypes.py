"""Whole jobs whose rows have 16 bits: what they learn, what a kill and a checkpoint leave, and what
travels."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from shoal.checkpoints import contents
from shoal.checkpoints.newest import checkpoint_at
from shoal.proto import faults
from shoal.tools.chaos.relay import Relay
from tests.jobs.results import model
from tests.jobs.running import RunningJob, run

pytestmark = pytest.mark.job

DTYPE = "bfloat16"


def rows_of(checkpoint):
    """id -> values, of each table of a checkpoint, by name."""
    found = {}
    for position, table in enumerate(checkpoint.model.tables):
        assert table.value_dtype == DTYPE
        rows = found[table.name] = {}
        for server in range(len(checkpoint.shards)):
            for piece in contents.table_pieces(checkpoint, server, position):
                rows.update(zip(piece["id"].tolist(), piece["values"].tolist(), strict=True))
    return found


def test_bfloat16_rows_learn_as_float32_ones_and_a_servers_death_changes_no_bit(
    trained, clicks, tmp_path
):
    def fields(name):
        return {
            "model_def": "small.custom_model",
            "model_params": f"dtype={DTYPE}",
            "training_data": clicks,
            "validation_data": clicks,
            "output": tmp_path / f"{name}-out",
            "batch_size": 25,
            "seed": 7,
            "pipeline_depth": 0,
            "durability": "log",
        }

    kills = tmp_path / "kills"
    kills.mkdir()
    (kills / "push-logged").touch()

    def undisturbed():
        return run("train", tmp_path, "one", servers="1", **fields("one")).succeeded()

    def disturbed():
        environment = {faults.VARIABLE: str(kills)}
        with RunningJob(
            "train", tmp_path, "two", environment=environment, servers="2", **fields("two")
        ) as job:
            return job.ended().succeeded()

    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(undisturbed), pool.submit(disturbed)]
        one, two = (each.result() for each in jobs)
    assert list(kills.iterdir()) == []
    assert two.result["log"]["replayed_pushes"] >= 1
    assert two.result["servers"]["lost_pushes"] == 0
    # What rounding draws is of the row and the step: neither the server nor its death counts.
    exported = model(tmp_path / "one-out")
    assert model(tmp_path / "two-out") == exported
    assert one.result["metrics"] == two.result["metrics"]
    # The export has the servers' rows, each a bfloat16.
    for name, rows in rows_of(checkpoint_at(str(tmp_path / "two" / "checkpoints"))).items():
        table = exported[f"{name}.parquet"]
        assert dict(zip(table["id"], table["vector"], strict=True)) == rows
        bits = np.array(table["vector"], np.float32).view(np.uint32)
        assert (bits & 0xFFFF == 0).all()
    # The data are chance: what is learnt of them is so much alike, and no more.
    for metric, value in trained.result["metrics"].items():
        assert one.result["metrics"][metric] == pytest.approx(value, abs=0.03)


class Tap(Relay):
    """A relay that counts the bytes that go through."""

    seen = 0

    def note(self, data):
        self.seen += len(data)


def test_rows_of_16_bits_and_their_gradients_travel_so_unless_it_is_said_otherwise(
    clicks, tmp_path
):
    def travelled(name, **flags):
        """The bytes between the worker and its server."""
        arranged = tmp_path / f"{name}-faults"
        arranged.mkdir()
        tap = Tap(arranged, "worker-0", "ps-0")
        try:
            with RunningJob(
                "train",
                tmp_path,
                name,
                environment={faults.VARIABLE: str(arranged)},
                model_def="small.custom_model",
                model_params=f"dtype={DTYPE},width=512",
                training_data=clicks,
                batch_size=25,
                durability="checkpoint",
                **flags,
            ) as job:
                job.ended().succeeded()
        finally:
            tap.close()
        return tap.seen

    with ThreadPoolExecutor(2) as pool:
        halves = pool.submit(travelled, "halves")
        whole = pool.submit(travelled, "whole", wire_dtype="float32")
        # The rest, a fifth, is dense values, ids and calls without arrays.
        assert 0.5 < halves.result() / whole.result() < 0.7
