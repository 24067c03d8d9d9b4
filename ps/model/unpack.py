"""Frames as the server's own types; a push the same if it comes and if it is done again.

Owns what is where in a frame. Whether it may be applied is others' to say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.native import values
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.wire import frames
from shoal.ps.model.gradients import Gradients

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class UnpackedPush:
    """A push. ids: the distinct arrays of ids."""

    request: pb.PushRequest
    ids: list[Array]
    gradients: Gradients


def unpack(frame: bytes | memoryview) -> UnpackedPush:
    """The push in a frame. Raises WireError(BAD_REQUEST)."""
    request, arrays = frames.decode(frame, pb.PushRequest)
    given = len(request.tables) + 2 * request.has_dense
    if len(arrays) < given:
        raise WireError(
            pb.BAD_REQUEST,
            f"{len(arrays)} arrays for {len(request.tables)} tables"
            + " and the dense slices" * request.has_dense,
        )
    if len(set(request.tables)) < len(request.tables):
        raise WireError(pb.BAD_REQUEST, f"a table comes twice among {list(request.tables)}")
    parts = arrays[len(arrays) - given :]
    distinct = arrays[: len(arrays) - given]
    ids = ids_of_tables(distinct, request)
    scales = _scales(request)
    try:
        pairs = {
            position: (ids[i], _scaled(values.decode(parts[i]), scales[i]))
            for i, position in enumerate(request.tables)
        }
    except TypeError as error:
        raise WireError(pb.BAD_REQUEST, f"gradients: {error}") from error
    identity = request.identity
    gradients = Gradients(
        tables=pairs,
        dense=(parts[-2], parts[-1]) if request.has_dense else None,
        learning_rate=request.learning_rate,
        pulled_version=request.pulled_version,
        pulled_time=request.pulled_time,
        modulate_rate=request.modulate_rate,
        own_pushes=request.own_pushes,
        sender=(identity.worker, identity.incarnation, identity.sequence),
        table_rates=tuple(request.table_rates),
        event_time=request.event_time if request.HasField("event_time") else None,
    )
    return UnpackedPush(request, distinct, gradients)


def _scales(request: pb.PushRequest) -> list[float]:
    """The scale of each table's gradients. Raises WireError(BAD_REQUEST)."""
    scales = list(request.scales) or [1.0] * len(request.tables)
    if len(scales) != len(request.tables) or not all(0.0 < each < math.inf for each in scales):
        raise WireError(pb.BAD_REQUEST, f"{scales} are no scales of {len(request.tables)} tables")
    return scales


def _scaled(gradients: Array, scale: float) -> Array:
    return gradients if scale == 1.0 else gradients * np.float32(scale)


def exactly(arrays: list[Array], count: int) -> list[Array]:
    """The arrays of a frame, if they are so many. Raises WireError(BAD_REQUEST)."""
    if len(arrays) != count:
        raise WireError(pb.BAD_REQUEST, f"the frame holds {len(arrays)} arrays instead of {count}")
    return arrays


def check_ids(ids: Array) -> None:
    """Raises WireError(BAD_REQUEST) unless an array is int64 [n]."""
    if ids.dtype != np.int64 or ids.ndim != 1:
        raise WireError(pb.BAD_REQUEST, f"ids are int64 [n], not {ids.dtype} {list(ids.shape)}")


def ids_of_tables(arrays: list[Array], request: pb.PullRequest | pb.PushRequest) -> list[Array]:
    """The ids of each table that a request names, int64 [n]. Raises WireError(BAD_REQUEST)."""
    for each in arrays:
        check_ids(each)
    if len(request.ids_of) != len(request.tables) or any(
        place >= len(arrays) for place in request.ids_of
    ):
        raise WireError(
            pb.BAD_REQUEST,
            f"{len(arrays)} arrays of ids for {len(request.tables)} tables, placed as "
            f"{list(request.ids_of)}",
        )
    return [arrays[place] for place in request.ids_of]
