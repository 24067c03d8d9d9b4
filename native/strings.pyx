"""The ids of strings: FarmHash's Fingerprint64 of their bytes, modulo 2**63 - 1.

The same as those of tf.strings.to_hash_bucket_fast(text, 2**63 - 1), in every process and version.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport int64_t, uint8_t, uint64_t

import numpy as np

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef extern from "fingerprint.h" nogil:
    uint64_t shoal_fingerprint(const uint8_t* bytes, uint64_t size)


def string_ids(values):
    """The id of each string, int64 of the shape of `values`, from 0 to 2**63 - 2.

    values: an array of NumPy, or a list, of bytes or of str, of which the UTF-8 bytes count. NULs
        at the end of a string count in arrays of objects alone: NumPy's other strings have none.

    Raises TypeError for any other value, UnicodeEncodeError for a str that has no UTF-8.
    """
    given = values if isinstance(values, np.ndarray) else np.array(values, object)
    if given.dtype.kind not in "OSUT":
        raise TypeError(f"strings have ids, not {given.dtype}")
    # The interpreter's lock is kept: to look at an object takes as long as to hash it.
    cdef object[::1] texts = np.ascontiguousarray(given.astype(object, copy=False)).reshape(-1)
    out = np.empty(given.shape, np.int64)
    cdef int64_t[::1] ids = out.reshape(-1)
    cdef Py_ssize_t i, size
    cdef const char* start
    for i in range(texts.shape[0]):
        text = texts[i]
        if PyBytes_Check(text):
            start, size = PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)
        elif PyUnicode_Check(text):
            start = PyUnicode_AsUTF8AndSize(text, &size)
        else:
            raise TypeError(f"value {i} is no string: {text!r}")
        ids[i] = <int64_t>(shoal_fingerprint(<const uint8_t*>start, size)
                           % <uint64_t>0x7FFFFFFFFFFFFFFF)
    return out
