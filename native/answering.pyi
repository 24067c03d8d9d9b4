from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.native.rowstore import RowStore

FLAGS: int

class Moments:
    def begin(self, values: NDArray[np.float32], state: NDArray[np.float32]) -> None: ...
    def set(
        self,
        version: int,
        dense_version: int,
        sender: tuple[int, int, int] | None = None,
        state: NDArray[np.float32] | None = None,
    ) -> None: ...

class Answerer:
    def __init__(self, kind: int, bounds: Sequence[float]) -> None: ...
    def open(self, opened: bool = True) -> None: ...
    def route(self, epoch: int, own: NDArray[np.bool_] | None) -> None: ...
    def forget_workers(self, again: bool) -> None: ...
    def meet(self, worker: int, incarnation: int) -> None: ...
    def serve_model(
        self, tables: Iterable[tuple[RowStore, bool, bool]], moments: Moments
    ) -> None: ...
    @property
    def durations(self) -> tuple[list[int], float]: ...
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
    ) -> tuple[bool, int, int]: ...
