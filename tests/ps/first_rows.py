"""First rows of a job's tables, in files as a worker writes them."""

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.checkpoints.formats import manifests
from shoal.checkpoints.formats.export_schema import EXPORT_FORMAT
from shoal.checkpoints.saved import DENSE_COLUMNS
from shoal.files.storage import LocalStorage
from tests.ps.caller import SGD


def write_first_rows(folder, table, ids, rows):
    """Write ids, int64 [n], and rows, float32 [n, dim], of one table."""
    storage = LocalStorage(folder)
    storage.make()

    def write(name, content):
        with manifests.writing(storage, name) as file:
            pq.write_table(content, file, write_page_checksum=True)
        return file.described

    dim = rows.shape[1]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), dim)
    dense = pa.table({name: [] for name in DENSE_COLUMNS}, schema=pa.schema(DENSE_COLUMNS))
    described = {
        "name": table,
        "file": "0.parquet",
        "dim": dim,
        "rows": len(ids),
        "default": [0.0] * dim,
        "dtype": "float32",
        "in_models": False,
    }
    content = {
        "format": EXPORT_FORMAT,
        "job_name": "job",
        "job_id": "job",
        "version": 0,
        "keras": None,
        "saved_model": None,
        "dense": "dense.parquet",
        "optimizer": SGD,
        "tables": [described],
        "files": [
            write("0.parquet", pa.table({"id": ids, "vector": vectors})),
            write("dense.parquet", dense),
        ],
    }
    manifests.write(storage, manifests.MANIFEST, content)
