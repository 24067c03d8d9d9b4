"""Rows and gradients of one batch: sums, moves, wire formats, clipping.

What a worker does to float arrays around a step. Indices are those that ``ids.unique``
or ``ids.unique_by_server`` returned.
"""

from libc.stdint cimport int32_t, int64_t, uint16_t

import numpy as np

from shoal.native.arrays import aligned_zeros, require

from kernels cimport (
    shoal_all_below,
    shoal_decode_bfloat16,
    shoal_decode_float16,
    shoal_encode_bfloat16,
    shoal_encode_float16,
    shoal_gather,
    shoal_scatter,
    shoal_square_sum,
    shoal_sum_rows,
)


cdef check_index(str name, const int32_t[::1] index, int64_t limit):
    cdef int inside = 1
    if index.shape[0]:
        with nogil:
            inside = shoal_all_below(&index[0], index.shape[0], limit)
    if not inside:
        raise ValueError(f"{name} must be at least 0 and below {limit}")


def sum_by_inverse(gradients, inverse, int64_t unique):
    """Sum the gradients of equal ids, in order of appearance.

    gradients: float32 [n, dim]; inverse: int32 [n], each below ``unique``. Returns
    float32 [unique, dim], zero where nothing was added.
    """
    cdef const int32_t[::1] index = require("inverse", inverse, np.int32, (None,))
    cdef const float[:, ::1] given = require(
        "gradients", gradients, np.float32, (index.shape[0], None)
    )
    check_index("inverse", index, unique)
    # Aligned, so that TensorFlow takes it as it is.
    total = aligned_zeros((unique, given.shape[1]), np.float32)
    cdef float[:, ::1] out = total
    if index.shape[0] and given.shape[1]:
        with nogil:
            shoal_sum_rows(&given[0, 0], &index[0], index.shape[0], given.shape[1], &out[0, 0])
    return total


def gather_rows(rows, index, out=None):
    """out[i] = rows[index[i]]: float32 [u, dim] and int32 [n] to float32 [n, dim]."""
    cdef const float[:, ::1] given = require("rows", rows, np.float32, (None, None))
    cdef const int32_t[::1] places = require("index", index, np.int32, (None,))
    check_index("index", places, given.shape[0])
    shape = (places.shape[0], given.shape[1])
    if out is None:
        out = np.empty(shape, np.float32)
    cdef float[:, ::1] target = require("out", out, np.float32, shape, writable=True)
    if places.shape[0] and given.shape[1]:
        with nogil:
            shoal_gather(&given[0, 0], &places[0], places.shape[0], given.shape[1], &target[0, 0])
    return out


def scatter_rows(rows, index, out):
    """out[index[i]] = rows[i], in order of i; returns out.

    rows: float32 [n, dim]; index: int32 [n]; out: float32 [u, dim], written.
    """
    cdef const int32_t[::1] places = require("index", index, np.int32, (None,))
    cdef const float[:, ::1] given = require("rows", rows, np.float32, (places.shape[0], None))
    cdef float[:, ::1] target = require(
        "out", out, np.float32, (None, given.shape[1]), writable=True
    )
    check_index("index", places, target.shape[0])
    if places.shape[0] and given.shape[1]:
        with nogil:
            shoal_scatter(&given[0, 0], &places[0], places.shape[0], given.shape[1], &target[0, 0])
    return out


def _same_shape(name, given, dtype, out, out_dtype):
    """A checked input and an output of its shape, both as given."""
    require(name, given, dtype, (None,) * np.ndim(given))
    if out is None:
        return np.empty(given.shape, out_dtype)
    return require("out", out, out_dtype, given.shape, writable=True)


ctypedef void (*encoding)(const float *, uint16_t *, int64_t) noexcept nogil
ctypedef void (*decoding)(const uint16_t *, float *, int64_t) noexcept nogil


cdef encoded(encoding encode, values, out):
    out = _same_shape("values", values, np.float32, out, np.uint16)
    cdef const float[::1] source = values.reshape(-1)
    cdef uint16_t[::1] target = out.reshape(-1)
    if source.shape[0]:
        with nogil:
            encode(&source[0], &target[0], source.shape[0])
    return out


cdef decoded(decoding decode, bits, out):
    out = _same_shape("bits", bits, np.uint16, out, np.float32)
    cdef const uint16_t[::1] source = bits.reshape(-1)
    cdef float[::1] target = out.reshape(-1)
    if source.shape[0]:
        with nogil:
            decode(&source[0], &target[0], source.shape[0])
    return out


def to_bfloat16(values, out=None):
    """float32 of any shape to bfloat16 bit patterns (uint16), to nearest even."""
    return encoded(shoal_encode_bfloat16, values, out)


def from_bfloat16(bits, out=None):
    """bfloat16 bit patterns (uint16) of any shape to float32, exactly."""
    return decoded(shoal_decode_bfloat16, bits, out)


def to_float16(values, out=None):
    """float32 of any shape to float16 bit patterns (uint16), to nearest even."""
    return encoded(shoal_encode_float16, values, out)


def from_float16(bits, out=None):
    """float16 bit patterns (uint16) of any shape to float32, exactly."""
    return decoded(shoal_decode_float16, bits, out)


def squared_norm(values):
    """Sum of squares of a float32 array of any shape, accumulated in float64."""
    require("values", values, np.float32, (None,) * np.ndim(values))
    cdef const float[::1] source = values.reshape(-1)
    cdef double total = 0
    if source.shape[0]:
        with nogil:
            total = shoal_square_sum(&source[0], source.shape[0])
    return total


def clip_by_global_norm(gradients, clip_norm):
    """Scale gradients in place so that their common norm is at most ``clip_norm``.

    gradients: float32 arrays of any shapes. The factor is Keras's,
    clip_norm / max(norm, clip_norm); returns the norm before.
    """
    if not clip_norm > 0:
        raise ValueError(f"clip_norm must be above 0, got {clip_norm}")
    norm = float(np.sqrt(sum(squared_norm(g) for g in gradients)))
    if norm > clip_norm:
        for gradient in gradients:
            np.multiply(gradient, np.float32(clip_norm / norm), out=gradient)
    return norm
