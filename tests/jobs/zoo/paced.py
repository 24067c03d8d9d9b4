"""The model of `shoal chaos --count`, whose minibatches come at most 33 a second.

After a hundred of them it waits for the file that PACED_UNTIL names, if it names one.
"""

import os
import time
from pathlib import Path

import tensorflow as tf

from shoal.tools.counting import counts
from shoal.tools.counting.counts import custom_model, loss, optimizer

__all__ = ["custom_model", "feed_batch", "loss", "optimizer"]


UNTIL = os.environ.get("PACED_UNTIL")
made = 0


def late(records):
    global made
    time.sleep(0.03)
    made += 1
    # Not for ever: what does not come is told by the test.
    give_up = time.monotonic() + 60.0
    while UNTIL and made > 100 and not Path(UNTIL).exists() and time.monotonic() < give_up:
        time.sleep(0.05)
    return records


def feed_batch(columns, mode, metadata):
    if mode != "training":
        return counts.feed_batch(columns, mode, metadata)
    record = tf.numpy_function(late, [columns["record"]], tf.int64)
    record.set_shape(columns["record"].shape)
    return counts.feed_batch(columns | {"record": record}, mode, metadata)
