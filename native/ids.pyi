import numpy as np
from numpy.typing import NDArray

SLOTS: int
MAX_BATCH: int

def mix64(ids: NDArray[np.int64]) -> NDArray[np.uint64]: ...
def slot_of(ids: NDArray[np.int64]) -> NDArray[np.uint16]: ...
def unique(
    ids: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]: ...
def partition(
    ids: NDArray[np.int64], owners: NDArray[np.uint16], servers: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...
def unique_by_server(
    ids: NDArray[np.int64], owners: NDArray[np.uint16], servers: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]: ...
