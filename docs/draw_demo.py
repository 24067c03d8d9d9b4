"""Draws docs/demo.svg: the live display of `make demo`, while it trains.

    .venv/bin/python docs/draw_demo.py

Runs the command of `make demo`, which takes as long as that, and takes the picture from the real
display: its events so far, and the block below them once two thirds of the tasks are done. Run it
again after a change of the display, and commit the picture.
"""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from shoal.cli.main import main
from shoal.client.run.local import run_job
from shoal.client.show.display import LiveDisplay
from shoal.client.show.drawn import block
from shoal.config.job import JobConfig
from shoal.proto import shoal_pb2 as pb

PICTURE = Path(__file__).with_name("demo.svg")
COLUMNS = 100

# Nothing is fetched from elsewhere: the reader's own font.
FORMAT = re.sub(r"@font-face \{\{.*?\n    \}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
FORMAT = FORMAT.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")


class Camera(LiveDisplay):
    """The live display, which also takes a picture of itself."""

    def __init__(self) -> None:
        super().__init__(Console())
        self._paper = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
        self._paper.print(Text("$ make demo", style="bold"))
        self.taken = False

    def event(self, text: str) -> None:
        """One line above the block, in the picture too."""
        super().event(text)
        if not self.taken:
            self._paper.print(Text(f"{time.strftime('%H:%M:%S')} {text}"))

    def draw(self, status: pb.JobStatus) -> None:
        """Draw the block anew; the first one late in training is the picture's."""
        super().draw(status)
        late = status.state == "training" and 3 * status.tasks_done > 2 * status.tasks_total > 0
        if late and not self.taken:
            self.taken = True
            self._paper.print(block(status, self._course))
            self._paper.save_svg(str(PICTURE), title="shoal", code_format=FORMAT, unique_id="demo")


def draw() -> None:
    """Run the demo's job and write the picture."""
    root = Path(__file__).parents[1]
    made = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "demo"],
        cwd=root, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    line = made.replace("\\\n", " ").strip().splitlines()[-1]
    _, command, *flags = shlex.split(line)
    values = main.commands[command].make_context(command, flags).params
    names = {field for field in JobConfig.__dataclass_fields__ if field in values}
    camera = Camera()
    config = JobConfig(command=command, **{name: values[name] for name in names})
    result = run_job(config, camera)
    if not camera.taken:
        sys.exit(f"the job ended as {result.state}, and was never late in its training")


if __name__ == "__main__":
    draw()
