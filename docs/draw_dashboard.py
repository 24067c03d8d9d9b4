"""Draws docs/dashboard.png and docs/dashboard-phone.png: the page of a real, disturbed job.

    .venv/bin/python docs/draw_dashboard.py [FOLDER]

Trains the model of docs/guide/first-job.md on more of its made-up clicks, kills a worker and then a
server, and takes the pictures late in the training. Needs the extra `dashboard`, Chromium and
playwright. Run it again after a change of the page, and commit the pictures.

FOLDER: gets pictures to look at of this job and of others, which have ended in every way, each in
light and dark, wide and as on a phone; those in docs/ stay as they are.
"""

from __future__ import annotations

import csv
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

from playwright.sync_api import BrowserContext, Page, sync_playwright

from shoal.base.disk.job_folder import JobFolder
from shoal.client.found.processes import kill_job, process_of

DOCS = Path(__file__).parent
SCREEN, PHONE = (1180, 900), (375, 812)
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
JOB = "--training-data clicks.csv --validation-data later.csv --batch-size 64"
TRAIN = (
    "--model-def clicks.custom_model --workers 3 --servers 2 --epochs 3 --evaluation-steps 600 "
    "--metrics-seconds 2"
)
LOSES = "--model-def clicks.custom_model --durability checkpoint --on-loss accept --epochs 2"
SHOAL = [sys.executable, "-m", "shoal"]
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
    """The finished share of the job, by the page's title."""
    found = re.match(r"([\d.]+)%", page.title())
    return float(found[1]) / 100 if found else 0.0


def started(here: Path, name: str, flags: str) -> subprocess.Popen[bytes]:
    """A job under way, whose folder is there."""
    line = [*SHOAL, "train", *JOB.split(), *flags.split(), "--job-name", name]
    job = subprocess.Popen(line, cwd=here, stdout=subprocess.DEVNULL)
    until("the job's folder", folder_of(here, name).config.is_file)
    return job


def folder_of(here: Path, name: str) -> JobFolder:
    """The folder of a job below `here`."""
    return JobFolder(here / "shoal-jobs" / name)


def pictures(context: BrowserContext, url: str, name: str, folder: Path) -> None:
    """A whole page as it is now, in light and dark, wide and as on a phone."""
    page = context.new_page()
    for width, height in (SCREEN, PHONE):
        page.set_viewport_size({"width": width, "height": height})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.goto(url)
            page.wait_for_selector("html[data-looks]", state="attached")
            page.wait_for_timeout(1500)  # the journal is told
            page.screenshot(path=str(folder / f"{name}-{scheme}-{width}.png"), full_page=True)
    page.close()


def disturbed(here: Path, page: Page) -> None:
    """Kill a worker and a server of the job, and leave it late in its training."""
    until("a third of the training", lambda: share(page) > 0.3)
    kill(folder_of(here, "clicks"), "worker", 1)
    until("half of the training", lambda: share(page) > 0.5)
    kill(folder_of(here, "clicks"), "ps", 0)
    until("most of the training", lambda: share(page) > 0.75)
    page.wait_for_selector("#state[data-state=training]")


def others(here: Path) -> None:
    """Jobs that have failed, have lost updates, and were killed."""
    text = (here / "clicks.py").read_text()
    (here / "broken.py").write_text(
        text.replace("def custom_model():", "def custom_model():\n    1 / 0")
    )
    started(here, "failed", "--model-def broken.custom_model").wait()
    job = started(here, "degraded", LOSES)
    until("its training", lambda: pushed(folder_of(here, "degraded")))
    kill(folder_of(here, "degraded"), "ps", 0)
    job.wait()
    job = started(here, "killed", LOSES)
    until("its training", lambda: pushed(folder_of(here, "killed")))
    job.kill()
    kill_job(folder_of(here, "killed").config)


def pushed(folder: JobFolder) -> bool:
    """True if metrics.csv has a loss."""
    lines = folder.metrics.read_text().splitlines() if folder.metrics.exists() else []
    return any(row["loss"] for row in csv.DictReader(lines))


def draw(here: Path, folder: Path | None) -> None:
    """Run the jobs in a folder and take the pictures."""
    for name, text in files().items():
        (here / name).write_text(text)
    subprocess.run([sys.executable, "make_clicks.py"], cwd=here, check=True)
    job = started(here, "clicks", TRAIN + " --epochs 6" * (folder is not None))
    served = subprocess.Popen(
        [*SHOAL, "dashboard", "clicks", "--no-open"], cwd=here, stdout=subprocess.PIPE, text=True
    )
    try:
        assert served.stdout is not None
        url = served.stdout.readline().split()[-1]
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=FLAGS.split()
            )
            context = browser.new_context()
            page = context.new_page()
            page.set_viewport_size({"width": SCREEN[0], "height": SCREEN[1]})
            page.goto(url)
            disturbed(here, page)
            if folder is None:
                page.screenshot(path=str(DOCS / "dashboard.png"), full_page=True)
                page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
                page.emulate_media(color_scheme="dark")
                page.wait_for_selector(".lanes .restart", state="attached")
                page.screenshot(path=str(DOCS / "dashboard-phone.png"))
            else:
                folder.mkdir(parents=True, exist_ok=True)
                place = url.partition("?")[0]
                pictures(context, f"{place}?job=clicks", "running", folder)
                job.wait()
                others(here)
                for name in ("clicks", "failed", "degraded", "killed", "clicks&beside=degraded"):
                    pictures(context, f"{place}?job={name}", name.replace("&", "-"), folder)
                pictures(context, place, "jobs", folder)
            browser.close()
    finally:
        for process in (served, job):
            process.terminate()
            process.wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        draw(Path(made), Path(sys.argv[1]) if len(sys.argv) > 1 else None)
