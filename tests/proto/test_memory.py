"""How malloc keeps memory: what the C library is told."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.proto import memory
from shoal.proto.memory import keep_freed_memory

THREADS = """
import ctypes, sys, threading
from shoal.proto.memory import share_heaps

if sys.argv[1] == "shared":
    assert share_heaps()
together = threading.Barrier(12)

def work():
    together.wait()
    kept = [bytes(1000) for _ in range(1000)]
    together.wait()

threads = [threading.Thread(target=work) for _ in range(12)]
for each in threads:
    each.start()
for each in threads:
    each.join()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
stream = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, stream)
libc.fflush(stream)
"""


@pytest.mark.parametrize(("how", "few"), [("shared", True), ("each", False)])
def test_threads_share_two_heaps_where_they_would_have_one_each(how, few):
    command = [sys.executable, "-c", THREADS, how]
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    told = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    ).stdout
    assert (told.count("<heap nr=") <= memory.HEAPS) == few


def test_the_setting_is_known_here():
    assert keep_freed_memory()


@given(st.sets(st.sampled_from([-1, -2, -3])))
def test_a_setting_that_a_c_library_refuses_keeps_none_of_the_others_back(refused):
    """As a glibc whose threshold for mappings has a limit."""
    given_to = {}

    def mallopt(name, value):
        if name in refused and value > memory.MOST_MMAP_BYTES:
            return 0
        given_to[name] = value
        return 1

    assert memory._keep_with(mallopt) == (not refused)
    threshold = memory.MOST_MMAP_BYTES if -3 in refused else memory.KEPT_BYTES
    assert given_to[-3] == threshold
    assert {-1, -2} - given_to.keys() == refused - {-3}
