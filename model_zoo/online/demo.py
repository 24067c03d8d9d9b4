"""A model that learns from clicks while it is asked: train, publish, serve, and look how it does.

    python -m shoal.model_zoo.online.demo FOLDER [--seconds N]

A first job trains on yesterday's clicks. Then a stream of clicks on ever newer items begins. Each
half second a client asks `shoal serve` for the probability of clicks that have not happened yet.
Then they happen, and are written into a folder, from which a second job trains them and publishes
what has changed. Yesterday's model, which learns nothing more, is asked the same. In the end there
is a table, and a plot of both models' AUC and of how old the answers are: FOLDER/online.svg.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import shoal
from shoal.base.group_auc import auc
from shoal.model_zoo.online.prepare import Columns, World, write

RECORDS, SECONDS = 300, 0.5
"""Clicks between two answers, and the time between them."""

NEW_ITEMS = 2
"""That come each time, and as many go: an item is shown for 50 seconds."""

YESTERDAY = 100_000
"""Records before the stream begins."""

MARKS, MARK_EVERY = 1_000_000, 5.0
"""An item that nobody has seen is clicked each five seconds: once its row is served, the click is
in the answers. Their ids begin here."""

WINDOW = 20
"""Answers over which an AUC is computed: ten seconds."""


@dataclass
class Course:
    """The course of a stream, by seconds since it began.

    answers: (seconds, labels, answers of the served model, those of yesterday's). late: (seconds,
    seconds from a click to the first answer that knows it).
    """

    answers: list[tuple[float, Any, Any, Any]] = field(default_factory=list)
    late: list[tuple[float, float]] = field(default_factory=list)

    def aucs(self) -> list[tuple[float, float, float]]:
        """(seconds, AUC of the served model, AUC of yesterday's), over windows of answers."""
        found = []
        for last in range(WINDOW, len(self.answers) + 1, WINDOW):
            window = self.answers[last - WINDOW : last]
            labels, served, old = (np.concatenate([each[i] for each in window]) for i in (1, 2, 3))
            found.append((window[-1][0], auc(labels, served), auc(labels, old)))
        return found


def start(*words: str | Path, **options: Any) -> subprocess.Popen[str]:
    """Start a command of shoal."""
    return subprocess.Popen([sys.executable, "-m", "shoal", *map(str, words)], text=True, **options)


def train(root: Path, name: str, *words: str | Path) -> subprocess.Popen[str]:
    """Start a job of the series."""
    model = ("--model-zoo", Path(__file__).parent, "--model-def", "clicks.custom_model")
    job = ("--job-dir", root / name, "--latest", root / "latest", "--batch-size", "100")
    return start("train", *model, *job, "--publish", root / "live", *words)


@contextlib.contextmanager
def served(live: Path) -> Iterator[int]:
    """The port of a `shoal serve` that has caught up; it ends with this."""
    words = ("serve", live, "--name", "clicks", "--listen", "127.0.0.1:0")
    process = start(*words, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        port = re.search(r":(\d+)/v1/models/clicks", line)
        if port is None:
            raise SystemExit(f"shoal serve did not start: {line}{process.stdout.read()}")
        while ask(int(port[1]), "/readyz")[0] != 200:
            time.sleep(0.1)
        yield int(port[1])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def ask(port: int, path: str, body: Any = None) -> tuple[int, Any]:
    """The status of an answer, and its JSON."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        text = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, text)
        answer = connection.getresponse()
        read = answer.read()
        return answer.status, json.loads(read) if read[:1] == b"{" else None


def version(port: int) -> int:
    """The number of the newest delta that the served model has."""
    _, found = ask(port, "/v1/models/clicks")
    return int(found["model_version_status"][0]["version"])


def predictions(port: int, columns: Columns) -> Any:
    """The served model's probabilities of clicks."""
    inputs = {name: columns[name].tolist() for name in ("user", "item")}
    status, found = ask(port, "/v1/models/clicks:predict", {"inputs": inputs})
    if status != 200:
        raise SystemExit(f"shoal serve: {found}")
    return np.ravel(found["outputs"])


class Marks:
    """Clicks that tell how late the answers are."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._waiting: list[tuple[int, float]] = []
        self._next, self._count = 0.0, 0

    def added(self, columns: Columns, now: float) -> Columns:
        """The same clicks, with one on a new item if it is time for that."""
        if now < self._next:
            return columns
        self._next, self._count = now + MARK_EVERY, self._count + 1
        mark = {"user": 0, "item": MARKS + self._count, "click": 1}
        self._waiting.append((mark["item"], now))
        return {name: np.append(each, mark[name]) for name, each in columns.items()}

    def look(self, port: int, begun: float) -> None:
        """Look which of them the served model knows."""
        if not self._waiting:
            return
        body = {"ids": [item for item, _ in self._waiting]}
        _, found = ask(port, "/v1/tables/items:lookup", body)
        now = time.monotonic() - begun
        for mark, row in zip(list(self._waiting), found["rows"], strict=True):
            if any(row):
                self._waiting.remove(mark)
                self._course.late.append((now, now - mark[1]))


def stream(root: Path, seconds: float, port: int, yesterday: Any, world: World) -> Course:
    """Ask, and then let the clicks happen, for so long. yesterday: what shoal.follow returned."""
    course = Course()
    marks = Marks(course)
    begun = time.monotonic()
    number = 0
    while (now := time.monotonic() - begun) < seconds:
        world.turn(NEW_ITEMS)
        clicks = world.records(RECORDS)
        old = yesterday.predict({name: clicks[name] for name in ("user", "item")}).ravel()
        course.answers.append((now, clicks["click"], predictions(port, clicks), old))
        number += 1
        now = time.monotonic() - begun
        write(root / "clicks", f"part-{number:06}.parquet", marks.added(clicks, now))
        while time.monotonic() - begun < number * SECONDS:
            marks.look(port, begun)
            time.sleep(0.05)
    return course


def plot(course: Course, path: Path) -> None:
    """Draw both AUCs and the lateness of the answers."""
    from matplotlib import pyplot  # the demo's own need, of the extra demo

    pyplot.switch_backend("Agg")
    figure, (above, below) = pyplot.subplots(2, 1, sharex=True, figsize=(8, 6))
    seconds, new, old = zip(*course.aucs(), strict=True)
    above.plot(seconds, new, "o-", label="the served model, which learns on")
    above.plot(seconds, old, "o-", label="yesterday's model")
    above.set_ylabel("AUC of answers, before the click")
    above.legend()
    below.plot(*zip(*course.late, strict=True), "o-", color="black")
    below.set_ylabel("seconds from click to answer")
    below.set_xlabel("seconds of the stream")
    below.set_ylim(bottom=0)
    figure.savefig(path)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0, help="of the stream")
    given = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    root = given.folder.absolute()
    shutil.rmtree(root, ignore_errors=True)
    (root / "clicks").mkdir(parents=True)
    world = World()
    write(root / "clicks", "part-000000.parquet", world.records(YESTERDAY))
    data = ("--training-data", root / "clicks")
    if code := train(root, "yesterday", *data).wait():
        raise SystemExit(code)
    with served(root / "live") as port:
        yesterday = shoal.follow(root / "live")
        yesterday.close()  # it has the model of the first job, and gets nothing more
        words = ("--only-new", "--arriving", "0.5", "--until-idle", "10", "--publish-seconds", "1")
        metrics = ("--progressive-steps", "4", "--progressive-window", "2000")
        job = train(root, "today", *data, *words, *metrics)
        try:
            while job.poll() is None and version(port) == yesterday.number:
                time.sleep(0.1)
            course = stream(root, given.seconds, port, yesterday, world)
            code = job.wait()
        finally:
            job.terminate()
            job.wait()
    if code:
        raise SystemExit(code)
    half = [each for each in course.aucs() if each[0] > given.seconds / 2]
    late = np.array([each for _, each in course.late])
    told = {
        "AUC of the served model, second half": float(np.mean([new for _, new, _ in half])),
        "AUC of yesterday's model, second half": float(np.mean([old for *_, old in half])),
        "seconds from click to answer, median": float(np.median(late)),
        "seconds from click to answer, most": float(late.max()),
    }
    (root / "online.json").write_text(json.dumps(told, indent=1) + "\n")
    plot(course, root / "online.svg")
    for name, value in told.items():
        print(f"{name:38} {value:.3f}")
    print(f"plot                                   {root / 'online.svg'}")


if __name__ == "__main__":
    main()
