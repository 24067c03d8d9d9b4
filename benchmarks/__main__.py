"""The benchmarks that have names of their own: `python -m benchmarks NAME`."""

import importlib
import sys

NAMES = {
    "head-to-head": "benchmarks.head_to_head.run",
    "head-to-head-movielens": "benchmarks.head_to_head.movielens",
}


def main() -> None:
    """Run the benchmark that is named; `--help` after its name explains its flags."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in NAMES:
        raise SystemExit(f"Error: no benchmark is called {name!r}; there are: {', '.join(NAMES)}")
    sys.argv[:2] = [f"python -m benchmarks {name}"]
    importlib.import_module(NAMES[name]).main()


if __name__ == "__main__":
    main()
