from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

def string_ids(values: NDArray[Any] | Sequence[Any] | str | bytes) -> NDArray[np.int64]: ...
