"""NumPy arrays as tensors: the same values always, and the same memory where that is allowed."""

import gc

import numpy as np
import pytest
import tensorflow as tf

from shoal.native.arrays import ALIGNMENT, aligned_empty, aligned_zeros
from shoal.native.gradients import sum_by_inverse
from shoal.native.ids import SLOTS, unique_by_server
from shoal.proto.values.routing import Routing
from shoal.worker.engines.tensorflow.tensors import tensor_of
from shoal.worker.servers.cache import RowCache
from shoal.worker.servers.ids import group_ids
from shoal.worker.servers.pull_requests import PullPlan


def filled(shape, dtype):
    array = aligned_empty(shape, dtype)
    array[...] = np.arange(array.size).reshape(shape)
    return array


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("shape", [(1,), (7,), (4096,), (5, 3), (1, 1), (9, 1), (1, 9), ()])
def test_an_aligned_array_is_a_tensor_of_the_same_memory(shape, dtype):
    array = filled(shape, dtype)
    tensor = tensor_of(array)
    assert tensor.shape == shape
    assert tensor.dtype == dtype
    assert np.asarray(tensor).ctypes.data == array.ctypes.data
    np.testing.assert_array_equal(tensor, array)


def misaligned():
    return filled((4097,), "float32")[1:]


def read_only():
    array = filled((64, 2), "int64")
    array.flags.writeable = False
    return array


ARRAYS = {
    "misaligned": misaligned,
    "misaligned rows": lambda: filled((65, 3), "float32")[1:],
    "read-only": read_only,
    "every other": lambda: filled((64,), "int64")[::2],
    "transposed": lambda: filled((64, 3), "float32").T,
    "empty": lambda: filled((0,), "int64"),
    "no rows": lambda: filled((0, 16), "float32"),
    "no columns": lambda: filled((4, 0), "float32"),
    "bool": lambda: np.arange(64) % 3 == 0,
    "uint8": lambda: filled((64,), "uint8"),
    "uint64": lambda: filled((64,), "uint64"),
    "big-endian": lambda: np.arange(64, dtype=">i8"),
    "bytes": lambda: np.array([b"a", b"bc"], object),
}


@pytest.mark.parametrize("make", ARRAYS.values(), ids=ARRAYS)
def test_any_other_array_is_a_tensor_with_a_copy(make):
    array = make()
    tensor, expected = tensor_of(array), tf.constant(array)
    assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(tensor, expected)
    if array.size and array.dtype != object:
        assert not np.shares_memory(np.asarray(tensor), array)


def test_a_kernel_that_needs_alignment_takes_what_was_misaligned():
    array = misaligned()
    np.testing.assert_array_equal(tf.nn.relu(-tensor_of(array)), np.maximum(-array, 0))


def test_a_tensor_keeps_its_memory_after_the_array_is_gone():
    tensors = [tensor_of(np.full_like(filled((1000,), "int64"), i)) for i in range(50)]
    shared = [tensor_of(filled((1000,), "int64")) for _ in range(50)]
    gc.collect()
    for number, (tensor, other) in enumerate(zip(tensors, shared, strict=True)):
        assert np.asarray(tensor).tolist() == [number] * 1000
        assert np.asarray(other).tolist() == list(range(1000))


def test_an_operation_writes_nothing_into_shared_memory():
    array = filled((4096,), "float32")
    twice = tf.function(lambda tensor: (tensor + 1.0) * 2.0)
    assert float(twice(tensor_of(array))[1]) == 4.0
    tf.nn.relu(tf.math.negative(tensor_of(array)))
    assert array.tolist() == list(range(4096))


@pytest.mark.parametrize("servers", [1, 3])
def test_the_inverse_of_a_batch_is_taken_without_a_copy(servers):
    owners = (np.arange(SLOTS) % servers).astype(np.uint16)
    ids = np.arange(1000) % 77
    unique, inverse, _, _ = unique_by_server(ids, owners, servers)
    assert np.asarray(tensor_of(inverse)).ctypes.data == inverse.ctypes.data
    assert unique[inverse].tolist() == ids.tolist()


def test_summed_gradients_are_aligned_for_tensorflow():
    summed = sum_by_inverse(np.ones((5, 3), np.float32), np.array([0, 1, 0, 1, 3], np.int32), 4)
    assert summed.ctypes.data % ALIGNMENT == 0
    assert summed.tolist() == [[2.0] * 3, [2.0] * 3, [0.0] * 3, [1.0] * 3]
    assert not aligned_zeros((3, 5), np.float32).any()


def test_a_copy_is_made_where_it_is_asked_for():
    array = filled((64,), "float32")
    tensor = tensor_of(array, copy=True)
    array[...] = -1
    np.testing.assert_array_equal(tensor, np.arange(64))


def test_pulled_rows_are_taken_without_a_copy():
    dims = list(range(1, 33))  # NumPy's own memory is aligned by chance
    ids = group_ids([np.arange(101)], Routing.even(2))
    pulled = PullPlan([ids] * len(dims), dims).rows
    cached = RowCache(1 << 16, 1, dims, 2).look_up([ids] * len(dims))
    for rows in (*pulled, *cached.join(pulled, [1, 1])):
        assert np.asarray(tensor_of(rows)).ctypes.data == rows.ctypes.data
