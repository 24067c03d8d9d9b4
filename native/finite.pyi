import numpy as np
from numpy.typing import NDArray

def first_not_finite(values: NDArray[np.float32]) -> int: ...
