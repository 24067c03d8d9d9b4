"""DeepFM whose data comes slowly as long as there is a file `hold` beside them.

So a test has the time to do something to a job, however fast the machine is.
"""

import os
import sys
import time

sys.path.insert(0, "/model_zoo/movielens")

from deepfm import custom_model, eval_metrics_fn, feed, loss, optimizer

from shoal.data import ParquetReader

__all__ = ["custom_data_reader", "custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]

SECONDS = 3.0
"""For each task, as long as it is held."""


class HeldReader(ParquetReader):
    """Parquet, slowly."""

    def __init__(self, path):
        super().__init__(path)
        self._hold = os.path.join(os.path.dirname(path), "hold")

    def read(self, *arguments, **options):
        end = time.monotonic() + SECONDS
        while os.path.exists(self._hold) and time.monotonic() < end:
            time.sleep(0.05)
        yield from super().read(*arguments, **options)


def custom_data_reader(path, **_):
    return HeldReader(path)
