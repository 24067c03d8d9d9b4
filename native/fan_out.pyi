from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.native.tls import Secured

SENDING: int
DONE: int
UNSENT: int
UNREAD: int
UNTAKEN: int
LATE: int
CLOSED: int
BROKEN: int

class FanOut:
    status: NDArray[np.uint8]
    numbers: NDArray[np.int64]
    def __init__(self, servers: int, kind: int, answer: int, most_bytes: int) -> None: ...
    def shared(self, packed: bytes) -> None: ...
    def integers(self, field: int, values: NDArray[np.int64]) -> None: ...
    def reals(self, field: int, values: NDArray[np.float64]) -> None: ...
    def scales(self, field: int, values: NDArray[np.float32]) -> None: ...
    def specs(self, field: int) -> None: ...
    def send(
        self,
        array: NDArray[Any],
        offsets: NDArray[np.int64],
        data_type: int,
        has: NDArray[np.int64] | None = None,
    ) -> None: ...
    def want(
        self,
        array: NDArray[Any],
        offsets: NDArray[np.int64],
        data_type: int,
        *,
        optional: bool = False,
        decoded: NDArray[np.float32] | None = None,
    ) -> None: ...
    def answers(
        self,
        fields: int,
        specs: int,
        *,
        reals: Iterable[int] = (),
        flags: Iterable[int] = (),
        flag: int = 0,
    ) -> None: ...
    def run(
        self,
        sockets: NDArray[np.int32],
        seconds: float,
        secured: Mapping[int, Secured] | None = None,
    ) -> None: ...
    def kept(self, server: int) -> bytes: ...
    def error(self, server: int) -> int: ...

def rounded(
    values: NDArray[np.float32], offsets: NDArray[np.int64], data_type: int
) -> tuple[NDArray[Any], NDArray[np.float32]]: ...
