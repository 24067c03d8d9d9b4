"""Draws the plots of docs/benchmarks.md from the JSON files beside them.

    python docs/draw_benchmarks.py

Needs matplotlib (the extra `docs`). Each file of docs/benchmarks/ holds the figures of one table of
the page or of its notes, with the command that measured them; NAME.json becomes NAME.svg. After a
new measurement change the file and the page, run this, and commit all of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

FOLDER = Path(__file__).parent / "benchmarks"
COLORS = {"shoal": "#1b6ca8", "ParameterServerStrategy": "#e08a1e", "plain Keras": "#7a7a7a"}


def whole_job(axes: Axes, data: dict[str, Any]) -> None:
    """Samples a second by number of ids, a line per system."""
    for system, rates in data["samples_a_second"].items():
        axes.plot(data["ids"], rates, marker="o", color=COLORS[system], label=system)
    axes.set_xscale("log")
    axes.set_xticks(data["ids"], [f"{ids // 1_000_000} million" for ids in data["ids"]])
    axes.set_xticks([], minor=True)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("ids in the tables")
    axes.set_ylabel("samples/s")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def bars(axes: Axes, groups: dict[str, dict[str, float]], unit: str) -> None:
    """One group of horizontal bars per key of `groups`, the values written beside the bars."""
    names = list(next(iter(groups.values())))
    height = 0.8 / len(names)
    for number, name in enumerate(names):
        places = [row + height * (number - (len(names) - 1) / 2) for row in range(len(groups))]
        values = [group[name] for group in groups.values()]
        drawn = axes.barh(places, values, height, label=name, color=("#9cc3e0", "#1b6ca8")[number])
        axes.bar_label(drawn, fmt="%.2f", padding=3)
    axes.set_yticks(range(len(groups)), list(groups))
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(unit)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def row_store(axes: Axes, data: dict[str, Any]) -> None:
    """The share of the flat limit, by operation and dim."""
    bars(axes, data["share_of_flat_limit"], "share of the speed of a loop over flat arrays")
    axes.set_xlim(0, 1)


def pulls(axes: Axes, data: dict[str, Any]) -> None:
    """The time of a pull, with and without a checkpoint under way."""
    bars(axes, data["milliseconds"], "ms")


PLOTS = {"whole_job": (whole_job, 3.2), "row_store": (row_store, 2.8), "pulls": (pulls, 1.7)}
"""Name of the files -> function that draws it, height in inches."""


def draw(name: str) -> None:
    """Write NAME.svg from NAME.json; the same data give the same bytes."""
    plot, height = PLOTS[name]
    figure, axes = plt.subplots(figsize=(7.2, height), layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    plot(axes, json.loads((FOLDER / f"{name}.json").read_text()))
    target = FOLDER / f"{name}.svg"
    figure.savefig(target, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    # matplotlib leaves spaces at the ends of lines.
    target.write_text("".join(f"{line.rstrip()}\n" for line in target.read_text().splitlines()))


def main() -> None:
    """Draw all plots."""
    # Text stays text, so the files are small and readable.
    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "shoal", "font.family": "sans-serif"}
    for name in PLOTS:
        draw(name)


if __name__ == "__main__":
    main()
