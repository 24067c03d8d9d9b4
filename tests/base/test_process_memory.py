"""How much memory this process has, and may have."""

import os

import pytest

from shoal.base.process_memory import memory_limit, resident_bytes

MACHINE = 32 << 30


def test_of_this_process():
    assert 1 << 20 < resident_bytes() < memory_limit()
    held = bytearray(64 << 20)
    held[:: os.sysconf("SC_PAGE_SIZE")] = b"1" * len(held[:: os.sysconf("SC_PAGE_SIZE")])
    assert resident_bytes() > 64 << 20


def machine(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, MACHINE),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, MACHINE),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1048576\n"}, 1 << 20),
        (
            {
                "proc/self/cgroup": "0::/kubepods/pod1\n",
                "sys/fs/cgroup/kubepods/pod1/memory.max": "2097152\n",
            },
            2 << 20,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu:/\n4:memory:/docker/1\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "3145728\n",
            },
            3 << 20,
        ),
        (  # no limit, as version 1 says it
            {
                "proc/self/cgroup": "4:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            MACHINE,
        ),
    ],
)
def test_the_limit_is_the_containers_or_the_machines(tmp_path, files, limit):
    total = {"proc/meminfo": f"MemTotal:       {MACHINE >> 10} kB\nMemFree: 5 kB\n"}
    assert memory_limit(machine(tmp_path, total | files)) == limit


def test_a_system_that_does_not_tell(tmp_path):
    assert (memory_limit(tmp_path), resident_bytes(tmp_path)) == (0, 0)
