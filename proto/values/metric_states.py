"""The largest size of an evaluation's metric states: they travel in one message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.errors import UserError
from shoal.proto import shoal_pb2 as pb
from shoal.proto.wire.transport import MAXIMUM_MESSAGE_BYTES

LARGEST_STATES_BYTES = MAXIMUM_MESSAGE_BYTES - (1 << 20)
"""Of all metrics together; the rest is for names and shapes."""


def tell_rows(state: pb.MetricState, rows: tuple[Sequence[str], bytes, bytes, int]) -> None:
    """Put rows by key into a state that is in its message already: they may be large.

    rows: keys, positions, values and width, as KeyedRows.sparse of shoal.base.slices gives them.
    """
    keys, state.rows.positions, state.rows.values, state.rows.width = rows
    state.rows.keys.extend(keys)


def check_size(sizes: Mapping[str, int]) -> None:
    """Raise UserError, which names the largest metric, if no message holds these states.

    sizes: bytes by the metric's name.
    """
    if (size := sum(sizes.values())) <= LARGEST_STATES_BYTES:
        return
    largest = max(sizes, key=lambda name: sizes[name])
    raise UserError(
        f"the metrics of an evaluation need {size:,} bytes, {sizes[largest]:,} of them for "
        f"{largest!r}, and at most {LARGEST_STATES_BYTES:,} can be sent to the worker that "
        "computes their values. Name a sample of the records as --validation-data, or leave "
        f"{largest!r} out of eval_metrics_fn: GroupAUC keeps 40 bytes of each record, Slices "
        "3.2 kB of each slice"
    )
