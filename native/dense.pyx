"""The dense block: one flat vector of float32 with its optimizer slots.

The rules are those of the rows (steps.h), run over the whole vector at once. Which
variables the vector is made of, and how it is cut over servers, is not known here.
"""

from libc.stdint cimport int64_t

import numpy as np

from shoal.native.arrays import require

from kernels cimport (
    SHOAL_ADAGRAD,
    SHOAL_ROWWISE_ADAGRAD,
    shoal_apply_fn,
    shoal_apply_of,
    shoal_decay_weights,
    shoal_is_plain,
    shoal_prepare_gradient,
    shoal_step,
    shoal_step_at,
    step_of,
)


cdef class DenseBlock:
    """A vector of float32 values and the slots of its optimizer.

    values: float32 [n], copied. Row-wise Adagrad has no rows here and runs as Adagrad.
    clipnorm goes by the norm of the whole vector: a caller that holds only a part of a
    variable must clip before. Not safe for concurrent updates: the caller locks.
    """

    cdef shoal_step _step
    cdef object _values, _slots, _scratch, _memory
    cdef readonly object optimizer

    def __cinit__(self, values, optimizer):
        require("values", values, np.float32, (None,))
        self.optimizer = optimizer
        # one array: the kernels find the slots behind the values
        self._memory = np.empty((1 + len(optimizer.slot_names), len(values)), np.float32)
        self._values, self._slots = self._memory[0], self._memory[1:]
        self._values[:] = values
        for k, value in enumerate(optimizer.slot_initial_values):
            self._slots[k] = value
        self._step = step_of(optimizer)
        if self._step.rule == SHOAL_ROWWISE_ADAGRAD:
            self._step.rule = SHOAL_ADAGRAD
        self._scratch = None

    def __len__(self):
        return len(self._values)

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
        cdef float[::1] values = self._values
        cdef float[::1] scratch
        cdef const float[::1] given = require("gradient", gradient, np.float32, (values.shape[0],))
        cdef int64_t n = values.shape[0]
        cdef shoal_step now
        cdef float *w
        cdef const float *g
        cdef shoal_apply_fn apply
        self.optimizer.check_learning_rate(learning_rate)
        if step < 1:
            raise ValueError(f"step must be at least 1, got {step}")
        if n == 0:
            return
        now = shoal_step_at(&self._step, learning_rate, gradient_scale, step)
        apply = shoal_apply_of(now.rule)
        w = &values[0]
        g = &given[0]
        if shoal_is_plain(&now):
            with nogil:
                apply(&w, n, g, 1, n, n, &now)
            return
        if self._scratch is None:
            self._scratch = np.empty(n, np.float32)
        scratch = self._scratch
        with nogil:
            shoal_prepare_gradient(g, &scratch[0], n, &now)
            g = &scratch[0]
            if now.decay != 0:
                shoal_decay_weights(w, n, &now)
            apply(&w, n, g, 1, n, n, &now)
