from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

BYTES: int
FLOATS: int
INTEGERS: int
ABSENT: int

def columns_of(
    records: Sequence[bytes], wanted: Sequence[tuple[bytes, int, bool]]
) -> list[
    tuple[
        npt.NDArray[np.float32] | npt.NDArray[np.int64] | npt.NDArray[np.uint8],
        npt.NDArray[np.int64],
        npt.NDArray[np.int64],
        npt.NDArray[np.int64],
    ]
]: ...
def fields_in(message: bytes) -> list[tuple[int, bytes]]: ...
def features_in(record: bytes) -> list[tuple[bytes, bool, bytes]]: ...
