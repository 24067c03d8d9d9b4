"""Draws docs/dashboard.png and docs/dashboard-phone.png: the page of a real, disturbed job.

    .venv/bin/python docs/draw_dashboard.py

Trains the model of docs/guide/first-job.md on more of its made-up clicks, kills a worker and then a
server, and takes the pictures late in the training. Needs the extra `dashboard`, Chromium and
playwright. Run it again after a change of the page, and commit the pictures.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from shoal.base.job_folder import JobFolder
from shoal.client.processes import process_of

DOCS = Path(__file__).parent
SCREEN, PHONE = (1180, 900), (375, 812)
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
TRAIN = (
    "train --model-def clicks.custom_model --training-data clicks.csv --validation-data later.csv "
    "--workers 3 --servers 2 --epochs 3 --evaluation-steps 600 --batch-size 64 "
    "--metrics-seconds 2 --job-name clicks"
)
PATIENCE = 600.0


def files() -> dict[str, str]:
    """The Python files of the page of the first job, with more clicks."""
    text = (DOCS / "guide" / "first-job.md").read_text()
    make, model, *_ = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    more = make.replace("40_000", "120_000").replace("1000)", "4000)")
    return {"make_clicks.py": more, "clicks.py": model}


def until(what: str, look: Callable[[], Any]) -> Any:
    """The first true value of look()."""
    give_up = time.monotonic() + PATIENCE
    while not (found := look()):
        if time.monotonic() > give_up:
            sys.exit(f"waited {PATIENCE:.0f} s for {what}")
        time.sleep(0.2)
    return found


def kill(folder: JobFolder, role: str, index: int) -> None:
    """Kill a process of the job."""
    process = process_of(folder.config, role, index)
    assert process is not None, f"there is no {role}-{index}"
    os.kill(process, signal.SIGKILL)


def share(page: Page) -> float:
    """How much of the job is done, by the page's title."""
    found = re.match(r"([\d.]+)%", page.title())
    return float(found[1]) / 100 if found else 0.0


def draw(here: Path) -> None:
    """Run the job in a folder and take the pictures."""
    for name, text in files().items():
        (here / name).write_text(text)
    shoal = [sys.executable, "-m", "shoal"]
    subprocess.run([sys.executable, "make_clicks.py"], cwd=here, check=True)
    folder = JobFolder(here / "shoal-jobs" / "clicks")
    job = subprocess.Popen([*shoal, *TRAIN.split()], cwd=here, stdout=subprocess.DEVNULL)
    until("the job's folder", folder.config.is_file)
    served = subprocess.Popen(
        [*shoal, "dashboard", "clicks", "--no-open"], cwd=here, stdout=subprocess.PIPE, text=True
    )
    try:
        assert served.stdout is not None
        url = served.stdout.readline().split()[-1]
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=FLAGS.split()
            )
            page = browser.new_page(viewport={"width": SCREEN[0], "height": SCREEN[1]})
            page.goto(url)
            until("a third of the training", lambda: share(page) > 0.3)
            kill(folder, "worker", 1)
            until("half of the training", lambda: share(page) > 0.5)
            kill(folder, "ps", 0)
            until("most of the training", lambda: share(page) > 0.75)
            page.wait_for_selector("#state[data-state=training]")
            page.screenshot(path=str(DOCS / "dashboard.png"), full_page=True)
            phone = browser.new_page(
                viewport={"width": PHONE[0], "height": PHONE[1]}, color_scheme="dark"
            )
            phone.goto(url)
            phone.wait_for_selector(".lanes .restart", state="attached")
            phone.screenshot(path=str(DOCS / "dashboard-phone.png"))
            browser.close()
    finally:
        for process in (served, job):
            process.terminate()
            process.wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        draw(Path(made))
