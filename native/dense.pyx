"""The dense block: one flat vector of float32 with its optimizer slots.

A thin shell around dense.h. Which variables the vector is made of, and how it is cut over servers,
is not known here.
"""

from libc.stdint cimport int64_t
from libc.string cimport memset

import numpy as np

from shoal.native.arrays import require

from kernels cimport (
    SHOAL_ADAGRAD,
    SHOAL_ROWWISE_ADAGRAD,
    pthread_mutex_destroy,
    pthread_mutex_init,
    shoal_dense,
    shoal_dense_update,
    step_of,
)


cdef class DenseBlock:
    """A vector of float32 values and the slots of its optimizer.

    values: float32 [n], copied. Row-wise Adagrad has no rows here and runs as Adagrad.
    clipnorm goes by the norm of the whole vector: a caller that holds only a part of a
    variable must clip before. Updates from any thread come one after another.
    """

    cdef shoal_dense _dense
    cdef object _values, _slots, _scratch, _memory
    cdef readonly object optimizer

    def __cinit__(self, values, optimizer):
        memset(&self._dense, 0, sizeof(self._dense))
        pthread_mutex_init(&self._dense.lock, NULL)
        require("values", values, np.float32, (None,))
        self.optimizer = optimizer
        # one array: the kernels find the slots behind the values
        self._memory = np.empty((1 + len(optimizer.slot_names), len(values)), np.float32)
        self._values, self._slots = self._memory[0], self._memory[1:]
        self._values[:] = values
        for k, value in enumerate(optimizer.slot_initial_values):
            self._slots[k] = value
        # Costs no memory before it is written to, which most optimizers do not.
        self._scratch = np.empty(len(values), np.float32)
        self._dense.step = step_of(optimizer)
        if self._dense.step.rule == SHOAL_ROWWISE_ADAGRAD:
            self._dense.step.rule = SHOAL_ADAGRAD
        self._dense.values = <float *><size_t>self._values.ctypes.data
        self._dense.scratch = <float *><size_t>self._scratch.ctypes.data
        self._dense.n = len(values)

    def __dealloc__(self):
        pthread_mutex_destroy(&self._dense.lock)

    def __len__(self):
        return len(self._values)

    @property
    def address(self):
        """The address of the C block, for an extension that keeps this object meanwhile."""
        return <size_t>&self._dense

    @property
    def values(self):
        """float32 [n], the block's own memory: later updates show in it."""
        return self._values

    @property
    def slots(self):
        """Slot name to float32 [n], the block's own memory."""
        return dict(zip(self.optimizer.slot_names, self._slots, strict=True))

    def update(self, gradient, *, learning_rate, step, gradient_scale=1.0):
        """Apply the optimizer once.

        gradient: float32 [n], not modified. learning_rate: of this update. step: the
        1-based count of updates, for Adam's bias correction. gradient_scale: multiplies
        the gradient.
        """
        cdef const float[::1] given = require("gradient", gradient, np.float32, (self._dense.n,))
        cdef double rate = learning_rate, scale = gradient_scale
        cdef int64_t number = step
        self.optimizer.check_learning_rate(learning_rate)
        if step < 1:
            raise ValueError(f"step must be at least 1, got {step}")
        if self._dense.n:
            with nogil:
                shoal_dense_update(&self._dense, &given[0], rate, scale, number)
