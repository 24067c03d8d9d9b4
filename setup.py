"""Extensions and folder mapping; everything else is in pyproject.toml.

The source folders stand at the root of the repository and are imported as
``shoal.<folder>``: a bare ``ps`` or ``worker`` in site-packages would clash
with other libraries.

Environment switches read at build time:

SHOAL_BOUNDS_CHECK=1   Cython bounds and overflow checks, for the tests
SHOAL_SANITIZE=...     address: AddressSanitizer and UndefinedBehaviorSanitizer;
                       thread: ThreadSanitizer
SHOAL_ANNOTATE=1       Cython's HTML report, below build/cython
SHOAL_PURE=1           no extensions: for an editable install beside those that
                       `build_ext --inplace` makes, which would compile them again
"""

import os
import platform
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

FOLDERS = ("native", "proto", "ps", "master", "worker", "model_zoo")
SHARED = "shoal.native._cython"
"""Cython's own code, which each extension would contain."""


def enabled(name: str) -> bool:
    """True if an environment switch is set."""
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


class BuildExtensions(build_ext):
    """Tells which extension is compiled, of how many."""

    def build_extensions(self) -> None:
        """Compile those that are older than their sources."""
        self.stale = [
            each.name
            for each in self.extensions
            if self.force
            or newer_group([*each.sources, *each.depends], self.get_ext_fullpath(each.name))
        ]
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        """Compile one, unless it is up to date."""
        if ext.name in self.stale:
            place = self.stale.index(ext.name) + 1
            print(f"Compiling {ext.name}, {place} of {len(self.stale)}", flush=True)
        super().build_extension(ext)


def extensions() -> list[Extension]:
    """One extension per native/*.pyx, and the one with what they share."""
    # The parts of -O3 that make the kernels fast: the rest of it costs the compiler a fifth of its
    # time, and some kernels their speed. Which instructions are used is decided at run time per
    # function (native/), never by -march here, so that one wheel runs on every machine.
    compile_args = [
        "-O2",
        "-ftree-vectorize",
        "-fvect-cost-model=dynamic",
        "-fpeel-loops",
        "-g0",  # Python's own flags have -g
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
    # The largest first, as they take the compiler longest.
    sources = sorted(Path("native").glob("*.pyx"), key=lambda path: -path.stat().st_size)
    headers = [path.as_posix() for end in ("*.h", "*.pxd") for path in Path("native").glob(end)]
    shared = Extension(
        SHARED,
        ["native/_cython.c"],  # which Cython writes
        depends=["setup.py"],
        extra_compile_args=compile_args,
        extra_link_args=link_args,
    )
    return [
        Extension(
            f"shoal.native.{source.stem}",
            [source.as_posix()],
            include_dirs=["native"],
            extra_compile_args=compile_args,
            extra_link_args=link_args,
            depends=["setup.py", *headers],
        )
        for source in sources
    ] + [shared]


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
    cmdclass={"build_ext": BuildExtensions},
    ext_modules=[]
    if enabled("SHOAL_PURE")
    else cythonize(
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
        shared_utility_qualified_name=SHARED,
        quiet=True,
        annotate=enabled("SHOAL_ANNOTATE"),
        # Apart, as Cython compares times only: it would take C code made without
        # checks for a build with them.
        build_dir="build/cython-checked" if check else "build/cython",
        nthreads=0 if platform.system() == "Windows" else os.cpu_count() or 1,
    ),
)
