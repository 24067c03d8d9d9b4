"""Data that are searched for in what goes between the processes of a job."""

import numpy as np
import pyarrow.parquet as pq

PLANTED = 0x5AC3_E1F0_0D5A_C3E1
"""An id of which all eight bytes are seldom."""

LABEL = 0.6283185
"""Of its records: what goes between the processes shows that no label leaves a worker."""

LABELS = [np.float32(LABEL).tobytes(), np.float64(LABEL).tobytes(), str(LABEL).encode()]


def row_of(output):
    """The trained vector of the planted id, as bytes, from the export."""
    for path in sorted((output / "tables").glob("users*.parquet")):
        table = pq.read_table(path).to_pydict()
        if PLANTED in table["id"]:
            vector = table["vector"][table["id"].index(PLANTED)]
            return np.asarray(vector, np.float32).tobytes()
    raise AssertionError(f"no row of {PLANTED} in {output}")
