import os
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.native.between import Between
from shoal.native.moments import Moments
from shoal.native.pushes import PushRecord
from shoal.native.rowstore import RowStore
from shoal.native.tls import Secured
from shoal.native.whole import WholeUpdates

FLAGS: int

class Answerer:
    def __init__(
        self,
        pull: int,
        push: int,
        bounds: Sequence[float],
        *,
        finite_only: bool = True,
        watched: Iterable[str | os.PathLike[str]] = (),
        broken: Callable[[BaseException], object] | None = None,
        updates: WholeUpdates | None = None,
    ) -> None: ...
    def open(self, opened: bool = True) -> None: ...
    def route(self, epoch: int, own: NDArray[np.bool_] | None) -> None: ...
    def forget_workers(self, again: bool) -> None: ...
    def meet(self, worker: int, incarnation: int) -> None: ...
    def know(self, worker: int, record: PushRecord) -> None: ...
    def note_load(self, arrays: Sequence[NDArray[np.int64]]) -> None: ...
    def loads(self) -> NDArray[np.uint32]: ...
    def forget_loads(self) -> None: ...
    def take_pushes(self, taken: bool) -> None: ...
    def leave_from(self, moment: float) -> None: ...
    def serve_model(
        self,
        tables: Iterable[tuple[RowStore, bool, bool]],
        moments: Moments,
        *,
        log: Callable[
            [memoryview, int, int, int | None], tuple[int, int, Callable[[], bool] | None]
        ]
        | None = None,
        between: Between | None = None,
        sweep: Callable[[], bool] | None = None,
        bounds: Sequence[int] | None = None,
        reads: Sequence[NDArray[np.int64]] | None = None,
    ) -> None: ...
    def durations(self, kind: int) -> tuple[list[int], float]: ...
    def push(self, frame: bytes | memoryview) -> bytes | None: ...
    def serve(
        self,
        socket: int,
        buffer: memoryview,
        begin: int,
        start: int,
        end: int,
        flags: bytearray,
        part_seconds: float,
        pause: str = "",
        secured: Secured | None = None,
        answer_seconds: float = 0.0,
    ) -> tuple[bool, int, int]: ...
