"""DeepFM on MovieLens whose data come slowly, as from a far storage: a second for each task.

So what a job takes depends on how many workers it has, and not on how fast, or how busy, the
one machine is on which all of them run.
"""

import sys
import time

sys.path.insert(0, "/model_zoo/movielens")

from deepfm import custom_model, feed, loss, optimizer

from shoal.data import ParquetReader

__all__ = ["custom_data_reader", "custom_model", "feed", "loss", "optimizer"]

SECONDS = 1.0


class SlowReader(ParquetReader):
    """Parquet, a second late."""

    def read(self, *arguments, **options):
        """Records, as ParquetReader."""
        time.sleep(SECONDS)
        yield from super().read(*arguments, **options)


def custom_data_reader(path, **_):
    """The reader of a file."""
    return SlowReader(path)
