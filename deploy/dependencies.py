"""Prints the requirements in a pyproject.toml, one a line: its own and its extras'.

usage: dependencies.py PYPROJECT [EXTRA ...]
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
wanted = [*project["dependencies"]]
for extra in sys.argv[2:]:
    wanted += project["optional-dependencies"][extra]
print("\n".join(wanted))
