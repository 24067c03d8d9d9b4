"""Older processors than this one, to test that nothing hangs on the processor.

    python -m tests.processors                     lists those that this machine can be
    python -m tests.processors x86-64-v2 COMMAND   runs a command as on such a processor

Their newer instructions are switched off where code is chosen by them while a process runs: in
shoal's kernels, NumPy, its BLAS, Arrow and the C library's mathematics.
"""

import os
import sys

from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

from shoal.native.rowstore import INSTRUCTION_SET

_V4 = ("AVX512", "X86_V4")
_V3 = ("AVX", "F16C", "FMA", "X86_V3")
_SWITCHES = {
    "x86-64-v2": (
        (*_V3, *_V4),
        {
            "OPENBLAS_CORETYPE": "Prescott",
            "ARROW_USER_SIMD_LEVEL": "SSE4_2",
            "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX,-AVX2,-FMA,-FMA4",
        },
    ),
    "x86-64-v3": (_V4, {"OPENBLAS_CORETYPE": "Haswell", "ARROW_USER_SIMD_LEVEL": "AVX2"}),
}

LEVELS = [level for level in _SWITCHES if int(level[-1]) <= INSTRUCTION_SET]


def switches(level):
    """The environment's variables that make this machine one of `level`."""
    newer, variables = _SWITCHES[level]
    off = [each for each in __cpu_dispatch__ if each.startswith(newer) and __cpu_features__[each]]
    return {**variables, "SHOAL_CPU": level, "NPY_DISABLE_CPU_FEATURES": " ".join(off)}


if __name__ == "__main__":
    if len(sys.argv) < 3:
        print(*LEVELS)
    else:
        os.execvpe(sys.argv[2], sys.argv[2:], os.environ | switches(sys.argv[1]))
