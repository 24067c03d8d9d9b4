"""Which tables an export's models hold, whether their sizes are known before or not."""

import numpy as np
import pytest

from shoal.files.storage import LocalStorage
from shoal.layers import Embedding
from shoal.proto import shoal_pb2 as pb
from shoal.worker.model.keras_models import served_tables
from shoal.worker.outputs.export_tables import write_tables

ROWS = (3, 5, 2)
ROW_BYTES = 8 + 4 * 4
LAYERS = {name: Embedding(4, name=name) for name in ("first", "second", "third")}
TABLES = served_tables(LAYERS, [], 0, "model.py")


class Source:
    def __init__(self, known):
        self.known = known

    def counts(self):
        return list(ROWS) if self.known else None

    def pieces(self, position):
        for number in range(ROWS[position]):
            yield np.array([number]), np.full((1, 4), number, np.float32)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("rows", "whole"),
    [
        (10, {"first", "second", "third"}),
        (9, {"first", "second"}),  # each would fit by itself
        (7, {"first", "third"}),
        (4, {"first"}),
        (2, {"third"}),
        (1, set()),
    ],
)
def test_the_first_tables_that_fit_together_are_in_the_models(tmp_path, known, rows, whole):
    specs = [pb.TableSpec(name=name, dim=4, value_dtype="float32") for name in LAYERS]
    folder, most = LocalStorage(tmp_path), rows * ROW_BYTES
    tables = write_tables(folder, Source(known), TABLES, most, specs, "float32")
    assert {name for name, table in tables.items() if not table.external} == whole
    assert [table.count for table in tables.values()] == list(ROWS)
