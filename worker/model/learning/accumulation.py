"""Gradient accumulation: the average of several minibatches' gradients as one push.

Owns how many go together and what they become. When they are computed is training/pipeline.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.native import averaging
from shoal.worker.input.event_times import median
from shoal.worker.servers.pushing import Push

Float32 = npt.NDArray[np.float32]

Clip = Callable[[Float32, list[Float32]], tuple[Float32, list[Float32]]]
"""Clips the gradient of the flat trainable vector and those of all tables."""


def minibatches_to_push(config: JobConfig, own: int) -> int:
    """By --accumulate, or `own`, which the optimizer says. Raises UserError."""
    if own == 1:
        return config.accumulate
    what = f"gradient_accumulation_steps={own}"
    if config.accumulate not in (1, own):
        raise UserError(f"the optimizer has {what}, but --accumulate is {config.accumulate}")
    if config.num_minibatches_per_task % own:
        raise UserError(
            f"--num-minibatches-per-task ({config.num_minibatches_per_task}) must be a multiple "
            f"of {what}"
        )
    return own


def average(pushes: Sequence[Push], dims: Sequence[int], clip: Clip) -> Push:
    """One push of several minibatches' gradients: their average, clipped.

    dims: length of a row of each table. The average is by the number of pushes, of a row too
    that some of them lack. Of the statistics it is the sum of the changes. It counts as
    pulled when the oldest of them was, and has the median of their event times.
    """
    count = len(pushes)
    rows = {
        table: averaging.mean_of_rows(
            [each.tables[table] for each in pushes if table in each.tables], count
        )
        for table in sorted({table for each in pushes for table in each.tables})
    }
    dense = averaging.mean_of_vectors([each.dense[0] for each in pushes], count)
    gradients = [
        rows[table][1] if table in rows else np.zeros((0, dim), np.float32)
        for table, dim in enumerate(dims)
    ]
    clipped, tables = clip(dense, gradients)
    return replace(
        pushes[-1],
        tables={table: (ids, tables[table]) for table, (ids, _) in rows.items()},
        dense=(clipped, np.sum([each.dense[1] for each in pushes], axis=0)),
        # Servers may have come or left between two of the pulls.
        versions=[min(each) for each in zip(*(push.versions for push in pushes), strict=False)],
        times=[min(each) for each in zip(*(push.times for push in pushes), strict=False)],
        applied=[min(each) for each in zip(*(push.applied for push in pushes), strict=False)],
        event_time=median([push.event_time for push in pushes if push.event_time is not None]),
    )
