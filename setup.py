"""Extensions and folder mapping; everything else is in pyproject.toml.

The source folders stand at the root of the repository and are imported as
``shoal.<folder>``: a bare ``ps`` or ``worker`` in site-packages would clash
with other libraries.

Environment switches read at build time:

SHOAL_BOUNDS_CHECK=1   Cython bounds and overflow checks, for the tests
SHOAL_SANITIZE=...     address: AddressSanitizer and UndefinedBehaviorSanitizer;
                       thread: ThreadSanitizer
SHOAL_ANNOTATE=1       Cython's HTML report, below build/cython
"""

import os
import platform
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

FOLDERS = ("native", "proto", "ps", "master", "worker", "model_zoo")


def enabled(name: str) -> bool:
    """Whether an environment switch is set."""
    return os.environ.get(name, "") not in ("", "0")


def packages() -> dict[str, str]:
    """Package name -> folder, for every folder that holds an __init__.py."""
    found = {"shoal": "shoal"}
    for root in ("shoal", *FOLDERS):
        for init in sorted(Path(root).rglob("__init__.py")):
            folder = init.parent.as_posix()
            dotted = folder.replace("/", ".")
            name = dotted if root == "shoal" else f"shoal.{dotted}"
            found[name] = folder
    return found


def extensions() -> list[Extension]:
    """One extension per native/*.pyx."""
    # -O3 lets the compiler vectorise the kernels; which instructions it may use
    # is decided at run time per function (native/), never by -march here, so
    # that one wheel runs on every machine.
    compile_args = [
        "-O3",
        "-ffp-contract=off",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-Wall",
        "-Wsign-compare",
        "-Wno-unused-function",
        "-Wno-maybe-uninitialized",
    ]
    # SHOAL_CPU (native/clones.h).
    link_args = ["-Wl,--wrap=__cpu_indicator_init"]
    if sanitizer := os.environ.get("SHOAL_SANITIZE"):
        kinds = {"address": "address,undefined", "thread": "thread"}
        link_args += [f"-fsanitize={kinds[sanitizer]}"]
        compile_args += ["-O1", "-g", "-fno-omit-frame-pointer", link_args[-1]]
    if sanitizer == "thread":
        # It does not know fences: they order what a lock-free reader sees, which it is not shown.
        compile_args += ["-Wno-tsan"]
    return [
        Extension(
            f"shoal.native.{source.stem}",
            [source.as_posix()],
            include_dirs=["native", numpy.get_include()],
            define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
            extra_compile_args=compile_args,
            extra_link_args=link_args,
            depends=[p.as_posix() for s in ("*.h", "*.pxd") for p in Path("native").glob(s)],
        )
        for source in sorted(Path("native").glob("*.pyx"))
    ]


package_dir = packages()
check = enabled("SHOAL_BOUNDS_CHECK")

setup(
    packages=sorted(package_dir),
    package_dir=package_dir,
    # The sources of C belong to the source distribution alone.
    include_package_data=False,
    package_data={name: ["py.typed", "*.pyi", "*.proto", "static/*"] for name in package_dir},
    # The C compiler too runs once a core.
    options={"build_ext": {"parallel": os.cpu_count() or 1}},
    ext_modules=cythonize(
        extensions(),
        compiler_directives={
            "language_level": "3",
            "boundscheck": check,
            "wraparound": False,
            "initializedcheck": check,
            "cdivision": True,
            "embedsignature": True,
            "binding": True,
        },
        include_path=["native"],  # kernels.pxd
        annotate=enabled("SHOAL_ANNOTATE"),
        # Apart, as Cython compares times only: it would take C code made without
        # checks for a build with them.
        build_dir="build/cython-checked" if check else "build/cython",
        nthreads=0 if platform.system() == "Windows" else os.cpu_count() or 1,
    ),
)
