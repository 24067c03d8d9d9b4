"""The columns of metrics.csv, by whose name the master writes and programs read them."""

TYPES = {
    "time": "time",
    "seconds": "float",
    "state": "text",
    "epoch": "int",
    "version": "int",
    "records": "int",
    "samples_per_second": "float",
    "loss": "float",
    "learning_rate": "float",
    "mean_staleness": "float",
    "workers": "int",
    "servers": "int",
    "worker_deaths": "int",
    "server_deaths": "int",
    "rows": "int",
    "table_bytes": "int",
    "counted_ids": "int",
    "removed_rows": "int",
    "evaluated_version": "int",
}
"""The columns that every file has, in their order. Those of evaluation metrics follow."""
