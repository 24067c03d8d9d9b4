"""Words for what is not finite in a push: the id of a table, or the variable.

Workers look before they send, since a step goes to several servers, and what is left out must be
left out on all of them. Servers look again, as the last line of defence.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.native.finite import first_not_finite
from shoal.proto import shoal_pb2 as pb

Values = npt.NDArray[Any]

SHOWN_IDS = 5
"""Most ids of a table in a message."""


def not_finite(
    spec: pb.ModelSpec,
    tables: Mapping[int, tuple[Values, Values]],
    dense: tuple[Values, Values] | None,
    starts: Sequence[int] = (0, 0),
) -> str:
    """The first NaN or infinity, in words; "" if there is none.

    tables, dense: as of a worker's Push or a server's Gradients. starts: the first element of the
    flat trainable vector in `dense`, and of the non-trainable one.
    """
    for position, (ids, gradients) in tables.items():
        if first_not_finite(gradients) >= 0:
            bad = ids[~np.isfinite(gradients).all(axis=1)]
            shown = ", ".join(map(str, bad[:SHOWN_IDS]))
            more = f" and {bad.size - SHOWN_IDS:,} more" if bad.size > SHOWN_IDS else ""
            name = spec.tables[position].name
            return f"the gradient of table {name!r} is not finite at id {shown}{more}"
    named = (("gradient", spec.trainable), ("change", spec.non_trainable))
    for (what, manifest), start, part in zip(named, starts, dense or (), strict=False):
        if (at := first_not_finite(part)) >= 0:
            holder = bisect_right([each.offset for each in manifest], start + at) - 1
            return f"the {what} of variable {manifest[holder].name!r} is {part[at]}"
    return ""
