import numpy as np
from numpy.typing import NDArray

from shoal.native.optimizers import OptimizerSpec

class DenseBlock:
    @property
    def optimizer(self) -> OptimizerSpec: ...
    @property
    def address(self) -> int: ...
    @property
    def values(self) -> NDArray[np.float32]: ...
    @property
    def slots(self) -> dict[str, NDArray[np.float32]]: ...
    def __init__(self, values: NDArray[np.float32], optimizer: OptimizerSpec) -> None: ...
    def __len__(self) -> int: ...
    def update(
        self,
        gradient: NDArray[np.float32],
        *,
        learning_rate: float,
        step: int,
        gradient_scale: float = 1.0,
    ) -> None: ...
