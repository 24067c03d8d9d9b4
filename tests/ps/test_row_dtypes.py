"""Rows of 16 bits on servers: their checkpoints are theirs, bit for bit, in half the bytes."""

import numpy as np
import pyarrow as pa
import pytest

from shoal.checkpoints import contents
from shoal.checkpoints.folders import Checkpoint
from shoal.checkpoints.saved import SavedCheckpoint
from shoal.files.storage import open_storage
from tests.ps import groups
from tests.ps.groups import IDS, Group, restored


@pytest.fixture
def of_dtype(monkeypatch):
    """Let the rows of the groups' table have a dtype."""
    plain = groups.spec

    def choose(value_dtype):
        def spec(*given):
            made = plain(*given)
            made.tables[0].value_dtype = value_dtype
            return made

        monkeypatch.setattr(groups, "spec", spec)

    return choose


def table_file(folder):
    (file,) = folder.glob("server-0000.*.table-0000.arrow")
    return pa.ipc.open_file(file)


@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize("value_dtype", ["bfloat16", "float16"])
def test_they_come_back_on_any_number_of_servers_and_go_on_alike(
    tmp_path, of_dtype, value_dtype, after
):
    of_dtype(value_dtype)
    saved = Group(2)
    for sequence in range(1, 4):
        saved.push(sequence, IDS[: 2000 * sequence])
    saved.save(tmp_path, 1)
    found = restored(tmp_path, 1, after)
    assert found.models[0].tables[0].value_dtype == value_dtype
    assert found.content() == saved.content()
    # What is trained then rounds alike, too, on whichever server a row is.
    for group in (saved, found):
        group.push(4, IDS[1000:3000], worker=1)
    assert found.content()[0] == saved.content()[0]


def test_a_checkpoint_has_the_rows_in_their_own_dtype(tmp_path, of_dtype):
    columns = {
        "": ("values", pa.float32()),
        "float16": ("values", pa.float16()),
        "bfloat16": ("bfloat16:values", pa.uint16()),
    }
    sizes = {}
    for number, (value_dtype, (name, kind)) in enumerate(columns.items(), 1):
        of_dtype(value_dtype)
        group = Group(1)
        group.push(1)
        batch = table_file(group.save(tmp_path, number)).get_batch(0)
        assert batch.schema.field(name).type == pa.list_(kind, 3)
        sizes[value_dtype] = batch.column(name).nbytes
        # Who reads it by shoal sees float32, of the numbers that the servers have.
        checkpoint = Checkpoint(open_storage(str(tmp_path)), number)
        rows = group.content()[0]
        for piece in contents.table_pieces(checkpoint, 0, 0):
            assert piece["values"].dtype == np.float32
            for key, values in zip(piece["id"].tolist(), piece["values"].tolist(), strict=True):
                assert rows[key][:3] == tuple(values)
    assert sizes["float16"] == sizes["bfloat16"] == sizes[""] / 2


@pytest.mark.parametrize("after", ["", "float16", "bfloat16"])
@pytest.mark.parametrize("before", ["", "bfloat16"])
def test_a_job_that_begins_with_saved_rows_rounds_them_to_the_nearest(
    tmp_path, of_dtype, before, after
):
    of_dtype(before)
    saved = Group(2)
    saved.push(1)
    saved.save(tmp_path, 1)
    checkpoint = SavedCheckpoint(Checkpoint(open_storage(str(tmp_path)), 1))
    of_dtype(after)
    found = Group(1).models[0]
    for ids, rows in checkpoint.rows("items", 3):
        found.assign(0, np.ascontiguousarray(ids), np.ascontiguousarray(rows))
    (values,) = (piece[1] for piece in found.tables[0].export())
    wide = np.concatenate([rows for _, rows in checkpoint.rows("items", 3)])
    unit = {"": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}[after]
    tiny = 2.0**-25 if after == "float16" else 0.0
    values, wide = np.sort(values, axis=0), np.sort(wide, axis=0)
    assert (np.abs(values - wide) <= np.abs(wide) * unit + tiny).all()
