"""Draws docs/processes.svg: the processes of a job, and what they say to each other.

    python docs/draw_processes.py

Run it again after a change to the text below, and commit both. Only Python is needed.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 860, 430
COLORS = {"data": "#f3f0e4", "master": "#e8e3f5", "worker": "#dfeefb", "server": "#e2f3e4"}

GROUPS = ((225, 135, 190, 275), (575, 135, 205, 160))
"""Workers and servers: x, y, width, height of the dashed frames around them."""

BOXES = (
    ("data", 20, 205, 130, ["Training data", "files, folders,", "object stores"]),
    ("master", 330, 20, 200, ["Master", "tasks, leases, restarts"]),
    ("worker", 240, 150, 160, ["Worker 0", "your Keras model"]),
    ("worker", 240, 230, 160, ["Worker 1", "your Keras model"]),
    ("worker", 240, 335, 160, ["Worker N", "your Keras model"]),
    ("server", 590, 150, 175, ["Parameter server 0", "half of the model"]),
    ("server", 590, 230, 175, ["Parameter server 1", "half of the model"]),
    ("data", 590, 340, 175, ["Disk or object store", "checkpoints, log,", "exported model"]),
)
LINES = (
    (150, 244, 223, 244, "records", 0, -8),
    (380, 82, 330, 133, "tasks and reports", -75, 0),
    (480, 82, 640, 133, "restarts, checkpoints", 85, -8),
    (573, 195, 417, 195, "pull rows", 0, -8),
    (417, 245, 573, 245, "push gradients", 0, -8),
    (677, 297, 677, 338, "", 0, 0),
)
MORE = (320, 315)
"""Where the text between worker 1 and worker N stands: x, y."""


def box(kind: str, x: int, y: int, width: int, lines: list[str]) -> list[str]:
    """A rounded box with a title and lines of text below it."""
    height = 24 + 18 * len(lines)
    middle = x + width // 2
    parts = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" '
        f'fill="{COLORS[kind]}" stroke="#555"/>'
    ]
    for number, line in enumerate(lines):
        weight = "bold" if number == 0 else "normal"
        parts.append(
            f'<text x="{middle}" y="{y + 24 + 18 * number}" text-anchor="middle" '
            f'font-weight="{weight}">{escape(line)}</text>'
        )
    return parts


def arrow(x1: int, y1: int, x2: int, y2: int, text: str, dx: int, dy: int) -> list[str]:
    """A line with a head, and its text moved by dx and dy from the middle."""
    parts = [
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#333" marker-end="url(#head)"/>'
    ]
    if text:
        x, y = (x1 + x2) // 2 + dx, (y1 + y2) // 2 + dy
        parts.append(f'<text x="{x}" y="{y}" text-anchor="middle">{escape(text)}</text>')
    return parts


def document(title: str, width: int, height: int, parts: list[str]) -> str:
    """These parts as an SVG on white, with the head that arrows have."""
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
        f"<title>{title}</title>",
        '<defs><marker id="head" markerWidth="9" markerHeight="7" refX="8" refY="3.5" '
        'orient="auto"><path d="M0,0 L9,3.5 L0,7 z" fill="#333"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    return "\n".join([*head, *parts, "</svg>", ""])


def picture() -> str:
    """The whole picture as SVG."""
    parts = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="12" fill="none" '
        'stroke="#999" stroke-dasharray="5 4"/>'
        for x, y, width, height in GROUPS
    ]
    parts.append(
        f'<text x="{MORE[0]}" y="{MORE[1]}" text-anchor="middle">as many as there is room for'
        "</text>"
    )
    for each in LINES:
        parts += arrow(*each)
    for each in BOXES:
        parts += box(*each)
    return document("The processes of a shoal job", WIDTH, HEIGHT, parts)


if __name__ == "__main__":
    (Path(__file__).parent / "processes.svg").write_text(picture())
