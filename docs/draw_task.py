"""Draws docs/task.svg: the way of a task, from the worker's question to its report.

    python docs/draw_task.py

Run it again after a change to the text below, and commit both. Only Python is needed.
"""

from __future__ import annotations

from pathlib import Path

from draw_processes import COLORS, arrow, box, document

WIDTH, HEIGHT = 860, 470
LEFT, SHELL, DECIDE, WORK = 20, 235, 450, 665
"""x of the four columns of boxes."""

COLORS |= {"wire": "#f0f0f0", "shell": "#f3f0e4", "decide": "#e8e3f5", "work": "#e2f3e4"}

BOXES = (
    ("worker", LEFT, 60, 175, ["Worker", "loop, task client"]),
    ("wire", LEFT, 170, 175, ["Wire", "proto/rpc, proto/serving"]),
    ("shell", SHELL, 170, 175, ["Service", "messages to questions"]),
    ("shell", SHELL, 280, 175, ["Shared job", "one question at a time"]),
    ("data", SHELL, 390, 175, ["Journal", "on disk before the reply"]),
    ("decide", DECIDE, 60, 175, ["Task outcomes, phases", "what a report leads to"]),
    ("decide", DECIDE, 170, 175, ["Assignments, leases", "who is given which task"]),
    ("decide", DECIDE, 280, 175, ["Job", "who may speak"]),
    ("work", WORK, 170, 175, ["Workload", "which kind comes first"]),
    ("work", WORK, 280, 175, ["Task board, copies", "ranges, their ledger"]),
)
LINES = (
    (107, 120, 107, 168, "asks, reports", 50, 4),
    (195, 200, 233, 200, "", 0, 0),
    (322, 230, 322, 278, "one question", 48, 4),
    (322, 340, 322, 388, "event", 26, 4),
    (410, 310, 448, 310, "", 0, 0),
    (537, 280, 537, 232, "", 0, 0),
    (537, 170, 537, 122, "report", 28, 4),
    (625, 200, 663, 200, "take", 0, -8),
    (625, 90, 745, 168, "complete", 46, -6),
    (752, 230, 752, 278, "", 0, 0),
)
TITLES = (
    (LEFT + 87, "worker"),
    (SHELL + 87, "master: threads and I/O"),
    (DECIDE + 87, "master/job: decisions"),
    (WORK + 87, "master/work: values"),
)


def picture() -> str:
    """The whole picture as SVG."""
    parts = [
        f'<text x="{x}" y="28" text-anchor="middle" fill="#555">{text}</text>' for x, text in TITLES
    ]
    for line in LINES:
        parts += arrow(*line)
    for each in BOXES:
        parts += box(*each)
    return document("The way of a task", WIDTH, HEIGHT, parts)


if __name__ == "__main__":
    (Path(__file__).parent / "task.svg").write_text(picture())
