from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.native.choices import Choice
from shoal.native.initializers import InitializerSpec
from shoal.native.optimizers import OptimizerSpec

VALUE_DTYPES: tuple[str, ...]
MAX_STEP: int
ERA_BITS: int
MAX_ROWS: int
MANY_USES: int
MAX_ADMIT_AFTER: int
USE_CLASSES: int
NO_PART: int
MAX_BOUNDS: int
INSTRUCTION_SET: int
MAX_THREADS: int

def use_cores(cores: int | None) -> None: ...

class RowStore:
    @property
    def dim(self) -> int: ...
    @property
    def optimizer(self) -> OptimizerSpec: ...
    @property
    def initializer(self) -> InitializerSpec: ...
    @property
    def seed(self) -> int: ...
    @property
    def value_dtype(self) -> str: ...
    @property
    def slot_names(self) -> tuple[str, ...]: ...
    @property
    def slot_width(self) -> int: ...
    @property
    def admit_after(self) -> int: ...
    @property
    def counting(self) -> int: ...
    @property
    def free_rows(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def step_address(self) -> int: ...
    def __init__(
        self,
        dim: int,
        optimizer: OptimizerSpec,
        initializer: InitializerSpec,
        seed: int,
        *,
        value_dtype: str = "float32",
        admit_after: int = 1,
    ) -> None: ...
    def __len__(self) -> int: ...
    def __contains__(self, id: int) -> bool: ...  # noqa: A002
    def memory_bytes(self) -> int: ...
    def lookup(
        self,
        ids: NDArray[np.int64],
        out: NDArray[np.float32] | None = None,
        *,
        missing: str = "initial",
        reads: NDArray[np.int64] | None = None,
    ) -> NDArray[np.float32]: ...
    def insert(self, ids: NDArray[np.int64]) -> None: ...
    def reserve(self, rows: int) -> None: ...
    def update(
        self,
        ids: NDArray[np.int64],
        gradients: NDArray[np.float32],
        *,
        learning_rate: float,
        step: int,
        gradient_scale: float = 1.0,
    ) -> None: ...
    def advance(self, step: int) -> None: ...
    def remove(self, ids: NDArray[np.int64]) -> int: ...
    def remove_chosen(
        self, ids: NDArray[np.int64], rows: Choice | None, counting: Choice | None
    ) -> tuple[NDArray[np.int64], int]: ...
    def collect(
        self,
        rows: Choice | None,
        counting: Choice | None,
        cursor: int = 0,
        limit: int = 4096,
        until: int = 1 << 32,
    ) -> tuple[NDArray[np.int64], int | None]: ...
    def changed(
        self, since: int, cursor: int = 0, limit: int = 4096
    ) -> tuple[NDArray[np.int64], int | None]: ...
    def histogram(
        self, bounds: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...
    def compact(self) -> None: ...
    def find(
        self, key: int
    ) -> tuple[NDArray[np.float32] | None, dict[str, NDArray[np.float32]], int, int] | None: ...
    def export(
        self, batch: int = 65536
    ) -> Iterator[
        tuple[
            NDArray[np.int64],
            NDArray[np.float32],
            dict[str, NDArray[np.float32]],
            NDArray[np.int64],
            NDArray[np.uint32],
        ]
    ]: ...
    def export_of(
        self,
        part_of: NDArray[np.uint16],
        parts: int,
        since: int,
        batch: int = 65536,
        *,
        counting: bool = False,
    ) -> Iterator[tuple[int, tuple[Any, ...]]]: ...
    def export_counting(
        self, batch: int = 65536
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint32]]]: ...
    def begin_snapshot(self) -> None: ...
    def snapshot(
        self, batch: int = 65536
    ) -> Iterator[
        tuple[
            NDArray[np.int64],
            NDArray[np.float32],
            dict[str, NDArray[np.float32]],
            NDArray[np.int64],
            NDArray[np.uint32],
        ]
    ]: ...
    def snapshot_by(
        self, part_of: NDArray[np.uint16] | None, parts: int, batch: int = 65536
    ) -> Iterator[
        tuple[
            int,
            tuple[
                NDArray[np.int64],
                NDArray[np.float32],
                dict[str, NDArray[np.float32]],
                NDArray[np.int64],
                NDArray[np.uint32],
            ],
        ]
    ]: ...
    def snapshot_counting_by(
        self, part_of: NDArray[np.uint16] | None, parts: int, batch: int = 65536
    ) -> Iterator[tuple[int, tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint32]]]]: ...
    def end_snapshot(self) -> None: ...
    def assign(
        self,
        ids: NDArray[np.int64],
        values: NDArray[np.float32],
        slots: Mapping[str, NDArray[np.float32]] | None = None,
        versions: NDArray[np.int64] | None = None,
        use_counts: NDArray[np.uint32] | None = None,
    ) -> None: ...
    def assign_counting(
        self,
        ids: NDArray[np.int64],
        versions: NDArray[np.int64],
        use_counts: NDArray[np.uint32],
    ) -> None: ...
