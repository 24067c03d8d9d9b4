"""Floats of which a model makes ids: those that are too large to be told from their neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def float_refused(name: str, numbers: npt.NDArray[Any]) -> str | None:
    """The reason why floats of a feature cannot be ids, which names one; None if they can.

    A float of 32 bits holds each whole number below 2^24, and of larger ones only some: two ids of
    the data would be one. What is no whole number is for the model to round.
    """
    limit = 2.0 ** (np.finfo(numbers.dtype).nmant + 1)
    wrong = ~(np.abs(numbers) < limit)  # NaN is below nothing
    if not wrong.any():
        return None
    found = numbers[wrong][0]
    told = f"{found:.0f}" if np.isfinite(found) else str(found)
    return (
        f"feature {name!r} is {told} as {numbers.dtype}, and the model makes ids of it: from "
        f"{limit:,.0f} on, this type holds only some of the whole numbers, so ids would become "
        "others. Make integers of the column in feed_batch, as with .astype('int64'), and store "
        "ids as integers"
    )
