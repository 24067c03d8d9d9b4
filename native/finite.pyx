"""Which values are not finite, found at the speed of memory."""

from libc.stdint cimport int64_t

import numpy as np

from shoal.native.arrays import require

from kernels cimport shoal_first_not_finite


def first_not_finite(values):
    """The position, in row-major order, of the first NaN or infinity; -1 if there is none.

    values: float32 array of any shape, contiguous.
    """
    require("values", values, np.float32, (None,) * np.ndim(values))
    cdef const float[::1] source = values.reshape(-1)
    cdef int64_t found = -1
    if source.shape[0]:
        with nogil:
            found = shoal_first_not_finite(&source[0], source.shape[0])
    return found
