"""Prints requirements of pyproject.toml for pip, one a line: to run shoal, or to build it.

usage: dependencies.py [--locked yes|no] [--build | EXTRA ...]

With `--locked yes` it prints the file of deploy/locks that belongs to them, which `make locks`
writes, with options for pip: each package needs a hash, and none is compiled, as the tools that
compile a package would come without hashes.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "deploy" / "locks"
HASHED = "--require-hashes\n--only-binary :all:\n"


def requirements(extras: list[str], build: bool) -> list[str]:
    """The requirements in pyproject.toml. Exits with a message if it lacks one of the extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    if build:
        return [*project["build-system"]["requires"]]
    wanted, known = [*project["project"]["dependencies"]], project["project"]
    for extra in extras:
        if extra not in known["optional-dependencies"]:
            names = ", ".join(known["optional-dependencies"])
            sys.exit(f"pyproject.toml has no extra {extra}; set EXTRAS to one of {names}")
        wanted += known["optional-dependencies"][extra]
    return wanted


def lock(extras: list[str], build: bool) -> Path | None:
    """The file with their versions and hashes; None if there is none."""
    name = "build" if build else " ".join(extras) or "server"
    path = LOCKS / f"{name}.txt"
    return path if path.is_file() else None


def main() -> None:
    """Print what the arguments ask for; a line of standard error says if it has no hashes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--locked", choices=("yes", "no"))
    parser.add_argument("--build", action="store_true")
    parser.add_argument("extras", nargs="*")
    asked = parser.parse_args()
    wanted = requirements(asked.extras, asked.build)
    if asked.locked != "yes":
        if asked.locked:
            print("LOCKED=no: pip takes the newest versions, without hashes", file=sys.stderr)
        print("\n".join(wanted))
        return
    path = lock(asked.extras, asked.build)
    if path is None:
        sys.exit(
            f"deploy/locks has no file for EXTRAS='{' '.join(asked.extras)}'; add --build-arg "
            "LOCKED=no, and pip takes the newest versions, without hashes"
        )
    print(HASHED + path.read_text(), end="")


if __name__ == "__main__":
    main()
