"""zoo/small.py, with a processor that keeps each task's predictions in a database.

Workers stop at the gates process-POSITION, committed-POSITION, and before-NAME and
after-NAME of a file that gets its name.
"""

import os
import sqlite3

from gates import pass_gate
from small import custom_model, eval_metrics_fn, feed, loss, optimizer

__all__ = ["custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]

_replace = os.replace


def gated_replace(source, target):
    pass_gate(f"before-{os.path.basename(target)}")
    _replace(source, target)
    pass_gate(f"after-{os.path.basename(target)}")


os.replace = gated_replace


class PredictionOutputsProcessor:
    def __init__(self):
        self.rows = []

    def process(self, predictions, worker_id, records):
        values = predictions.numpy().tolist()
        assert len(values) == len(records)
        self.rows += [(records.position + i, value) for i, value in enumerate(values)]
        pass_gate(f"process-{records.position}")

    def commit(self, records):
        rows, self.rows = self.rows, []
        with sqlite3.connect(os.environ["SHOAL_TEST_SINK"], timeout=60) as database:
            database.execute("CREATE TABLE IF NOT EXISTS tasks (position PRIMARY KEY, times)")
            database.execute("CREATE TABLE IF NOT EXISTS predictions (position, value)")
            again = database.execute(
                "UPDATE tasks SET times = times + 1 WHERE position = ?", [records.position]
            ).rowcount
            if not again:
                database.execute("INSERT INTO tasks VALUES (?, 1)", [records.position])
                database.executemany("INSERT INTO predictions VALUES (?, ?)", rows)
        pass_gate(f"committed-{records.position}")
