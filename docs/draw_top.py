"""Draws docs/top.svg: `shoal top` of a real, disturbed job.

    .venv/bin/python docs/draw_top.py

Runs the job of draw_dashboard.py, kills a worker of it, and takes the picture late in the training,
from the statuses that its master has told. Run it again after a change of `shoal top`, and commit
the picture.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from draw_dashboard import TRAIN, files, kill, until
from draw_demo import COLUMNS, FORMAT
from rich.console import Console
from rich.text import Text

from shoal.base.disk.job_folder import JobFolder
from shoal.client.ask.local_jobs import LocalJob
from shoal.client.ask.watching import ASK_SECONDS
from shoal.client.show.top import Seen, page

PICTURE = Path(__file__).with_name("top.svg")
ROWS = 40


def shown(folder: JobFolder) -> Seen:
    """The view of `shoal top` when most of the training is done; worker-1 is killed before."""
    seen, killed = Seen(), False
    with contextlib.closing(LocalJob(folder)) as job:
        while True:
            seen.add(job.status(), time.monotonic())
            status = seen.status
            done = status.records_done / max(1, status.records_total)
            if done > 0.3 and not killed:
                kill(folder, "worker", 1)
                killed = True
            # The new worker-1 has told twice what it is busy with, so that it is shown.
            busy = all(any(seen.worker_stages(each).values()) for each in status.workers)
            if done > 0.55 and busy and status.state == "training":
                return seen
            time.sleep(ASK_SECONDS)


def draw(here: Path) -> None:
    """Run the job in a folder and take the picture."""
    for name, text in files().items():
        (here / name).write_text(text)
    subprocess.run([sys.executable, "make_clicks.py"], cwd=here, check=True)
    folder = JobFolder(here / "shoal-jobs" / "clicks")
    line = [sys.executable, "-m", "shoal", *TRAIN.split()]
    job = subprocess.Popen(line, cwd=here, stdout=subprocess.DEVNULL)
    try:
        until(
            "a master",
            lambda: folder.master_address() is not None and LocalJob(folder).state() == "running",
        )
        paper = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
        paper.print(Text("$ shoal top clicks", style="bold"))
        paper.print(page(shown(folder), ROWS))
        paper.save_svg(str(PICTURE), title="shoal top", code_format=FORMAT, unique_id="top")
    finally:
        job.terminate()
        job.wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        draw(Path(made))
