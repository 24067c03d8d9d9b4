"""What whole jobs of the tests leave behind."""

import pyarrow.parquet as pq

COUNTING = {"model_def": "counting.custom_model", "batch_size": 10}
PIPELINED = COUNTING | {"pipeline_depth": 2}
"""By need, so few updates are not pulled ahead of."""

SERIAL = COUNTING | {"pipeline_depth": 0}
"""While a worker stands at a gate, its earlier pushes are all acknowledged."""


def applied(output):
    """(elements of `total`, {id: times}) of a job that trained zoo/counting.py."""
    dense = pq.read_table(output / "dense.parquet").to_pylist()
    table = pq.read_table(output / "tables" / "counts.parquet").to_pydict()
    counts = {i: vector[0] for i, vector in zip(table["id"], table["vector"], strict=True)}
    return dense[0]["values"], counts


def model(output):
    """Every value of an export."""
    files = [output / "dense.parquet", *sorted((output / "tables").glob("*.parquet"))]
    assert len(files) == 3
    return {file.name: pq.read_table(file).to_pydict() for file in files}
