"""A flame graph as one SVG file: no script, no font, nothing to fetch.

The graph hangs: each call is below its caller, as wide as its share of the samples. Pointing at a
call shows its whole name, samples and share.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

WIDTH, ROW, HEAD, MARGIN = 1200, 18, 48, 10
"""Of the picture, a call, the heading and the border, in pixels."""

CHARACTER = 6.7
"""Width of a character, pixels: of 11 pixels in any monospace font, and a little more."""

LEAST = 0.3
"""Pixels: a narrower call is not drawn, nor are those below it."""

KINDS = ("own", "shoal", "library", "thread")
"""What a call may be of: the user's code, shoal, a library, or the name of a thread."""

STYLE = """
svg { background: #fff; font: 11px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }
text { fill: #1b1b1b } .note { fill: #555 } h1 { font-size: 14px }
rect { stroke: #fff; stroke-width: .5 }
.own { fill: #ff9d3c } .shoal { fill: #7fc4e8 } .library { fill: #d5d9dd } .thread { fill: #b9e0b0 }
.call:hover rect { stroke: #000; stroke-width: 1 }
@media (prefers-color-scheme: dark) {
  svg { background: #16191d } .title, .note { fill: #d8dde3 } rect { stroke: #16191d }
  .call:hover rect { stroke: #fff }
}
"""


@dataclass(frozen=True)
class Call:
    """A call in a stack. name: in words. kind: one of KINDS."""

    name: str
    kind: str


@dataclass
class _Node:
    count: int = 0
    below: dict[Call, _Node] = field(default_factory=dict)


def flame_graph(title: str, stacks: Iterable[tuple[tuple[Call, ...], int]], note: str = "") -> str:
    """The SVG of stacks and how often each was seen.

    stacks: the calls, the outermost first. note: a line below the title.
    """
    root = _Node()
    for calls, count in stacks:
        node = root
        node.count += count
        for call in calls:
            node = node.below.setdefault(call, _Node())
            node.count += count
    drawn: list[str] = []
    per_sample = (WIDTH - 2 * MARGIN) / max(root.count, 1)
    depth = _draw(root, MARGIN, 0, per_sample, root.count, drawn)
    height = HEAD + depth * ROW + MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{_attribute(title)}">\n'
        f"<style>{STYLE}</style>\n"
        f'<text class="title" x="{MARGIN}" y="20" font-size="14">{escape(title)}</text>\n'
        f'<text class="note" x="{MARGIN}" y="38">{escape(note)}</text>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


def _attribute(text: str) -> str:
    return escape(text, {'"': "&quot;"})


def _draw(
    node: _Node, left: float, depth: int, per_sample: float, total: int, drawn: list[str]
) -> int:
    """Draw what is below a node, from `left` on; returns how deep it goes."""
    deepest = depth
    # By name, not by size: so two graphs of one program look alike.
    for call, below in sorted(node.below.items(), key=lambda each: each[0].name):
        width = below.count * per_sample
        if width >= LEAST:
            drawn.append(_box(call, below.count, left, depth, width, total))
            deepest = max(
                deepest, depth + 1, _draw(below, left, depth + 1, per_sample, total, drawn)
            )
        left += width
    return deepest


def _box(call: Call, count: int, left: float, depth: int, width: float, total: int) -> str:
    top = HEAD + depth * ROW
    fits = int((width - 4) / CHARACTER)
    shown = ""
    if fits >= 3:
        short = call.name if len(call.name) <= fits else f"{call.name[: fits - 1]}…"
        shown = f'<text x="{left + 3:.1f}" y="{top + 13}">{escape(short)}</text>'
    told = f"{call.name}: {count:,} of {total:,} samples, {count / total:.1%}"
    return (
        f'<g class="call"><title>{escape(told)}</title>'
        f'<rect class="{call.kind}" x="{left:.1f}" y="{top}" width="{width:.1f}" '
        f'height="{ROW - 1}"/>{shown}</g>'
    )
