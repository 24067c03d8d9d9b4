"""Does shoal learn what plain Keras does? Models, optimizers and numbers of updates, in each mode.

    python -m benchmarks.learning [--problems NAME ...] [--modes NAME ...] [--seeds N]

Each problem is a model of zoo/ and a number of records and epochs, on digits or on records with a
planted model. The modes take turns, seed by seed; plain Keras is one of them. A mode is behind if
its mean over the seeds is lower by more than 0.002 of AUC (0.01 of accuracy) and more than two
standard errors. A default may be where the job's report says that it has few updates.

Prints a table and writes build/bench/learning.json (not with --problems or --modes). Exits with 1
if a default is behind and no report says so.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import shoal
from shoal.client.show.learned import few_updates
from shoal.model_zoo.digits import prepare as digits

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "zoo"))
from records import planted  # noqa: E402

BENCH = Path("build/bench/learning")
VALIDATION = 20_000
SERVED_BYTES = 1
"""--embedding-threshold: each table of a problem is the servers'."""


@dataclass(frozen=True)
class Problem:
    """records: for training; 0: the digits."""

    name: str
    module: str
    records: int
    epochs: int
    batch: int

    @property
    def tolerance(self) -> float:
        """By which a metric may differ."""
        return 0.002 if self.records else 0.01

    @property
    def folder(self) -> Path:
        """The folder of the data, which is made if it is missing."""
        folder = BENCH / "data" / (str(self.records) if self.records else "digits")
        if not (folder / "validation.parquet").exists():
            folder.mkdir(parents=True, exist_ok=True)
            if not self.records:
                digits.prepare(folder)
                return folder
            for name, count, seed in (("train", self.records, 1), ("validation", VALIDATION, 2)):
                columns = planted(count, seed)
                columns["last"] = pa.array(columns["last"].tolist(), pa.list_(pa.int64(), 8))
                pq.write_table(pa.table(columns), folder / f"{name}.parquet")
        return folder


PROBLEMS = (
    Problem("CNN, SGD", "cnn", 0, 3, 64),
    Problem("CNN, SGD, 10 epochs", "cnn", 0, 10, 64),
    Problem("wide and deep, Adagrad", "wide_deep", 51_200, 1, 256),
    Problem("wide and deep, Adagrad, 5 epochs", "wide_deep", 51_200, 5, 256),
    Problem("DeepFM, Adam", "deepfm", 51_200, 3, 256),
    Problem("DCN-v2, SGD", "dcn", 51_200, 3, 256),
    Problem("DIN, Adam", "din", 51_200, 2, 256),
    Problem("MMoE, Adam", "mmoe", 51_200, 3, 256),
    Problem("two towers, Adagrad", "towers", 102_400, 3, 256),
    Problem("sequence, Adam", "sequence", 51_200, 2, 128),
    Problem("DeepFM, Adam, 5,000 updates", "deepfm", 256_000, 5, 256),
)

MODES: dict[str, dict[str, Any] | None] = {
    "Keras": None,
    "1 worker": {"workers": "1"},
    "2 workers": {"workers": "2"},
    "4 workers": {"workers": "4"},
    "2 workers, depth 0": {"workers": "2", "pipeline_depth": 0},
    "2 workers, depth 2": {"workers": "2", "pipeline_depth": 2},
    "2 workers, --sync": {"workers": "2", "sync": True},
    "4 workers, --staleness-bound 2": {"workers": "4", "staleness_bound": 2},
    "4 workers, --lr-staleness-modulation": {"workers": "4", "lr_staleness_modulation": True},
    "4 workers, --sync": {"workers": "4", "sync": True},
}
USUAL = tuple(MODES)[:-3]
"""Those that are run by default."""

DEFAULTS = ("1 worker", "2 workers", "4 workers")


@dataclass(frozen=True)
class Run:
    """The outcome of one training. told: the report says that staleness may cost."""

    metric: float
    samples_per_second: float
    updates: int = 0
    staleness: float = 0.0
    told: bool = False


def train(problem: Problem, mode: str, seed: int) -> Run:
    """One job, or one run of plain Keras."""
    flags = MODES[mode]
    if flags is None:
        given = (problem.module, problem.folder, seed, problem.epochs, problem.batch)
        command = [sys.executable, "-m", "benchmarks.learning.alone", *map(str, given)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return Run(**json.loads(done.stdout.splitlines()[-1]))
    # As many records to an update in each mode.
    batch = problem.batch // (int(flags["workers"]) if "sync" in flags else 1)
    result = shoal.train(
        model_def=f"{problem.module}.custom_model",
        model_zoo=HERE / "zoo",
        training_data=problem.folder / "train.parquet",
        validation_data=problem.folder / "validation.parquet",
        evaluation_steps=0,  # plain Keras is timed without evaluations, too
        servers=str(2 if problem.records else 1),
        epochs=problem.epochs,
        batch_size=batch,
        embedding_threshold=SERVED_BYTES,
        seed=seed,
        checkpoint_seconds=0.0,
        job_name="learning",
        job_dir=BENCH / "job",
        overwrite=True,
        **flags,
    )
    (metric,) = (v for k, v in result.metrics.items() if k.split("_")[-1] in ("auc", "accuracy"))
    return Run(
        metric,
        result.samples_per_second,
        max(result.versions.values()),
        result.staleness["mean"],
        bool(few_updates(result)),
    )


def line(problem: Problem, mode: str, runs: list[Run], keras: list[Run]) -> dict[str, Any]:
    """Compare one mode's runs with plain Keras: one line of the report."""
    ours, theirs = ([run.metric for run in each] for each in (runs, keras))
    spreads = [statistics.stdev(each) if len(each) > 1 else 0.0 for each in (ours, theirs)]
    error = math.sqrt(sum(s * s / len(runs) for s in spreads))
    difference = statistics.mean(ours) - statistics.mean(theirs)
    return {
        "problem": problem.name,
        "mode": mode,
        "metric": statistics.mean(ours),
        "spread": spreads[0],
        "difference": difference,
        "updates": max(run.updates for run in runs),
        "staleness": statistics.mean(run.staleness for run in runs),
        "samples_per_second": statistics.median(run.samples_per_second for run in runs),
        # To learn more than plain Keras is no fault.
        "behind": -difference > max(problem.tolerance, 2 * error),
        "told": all(run.told for run in runs),
    }


def main() -> int:
    """Run, print, write; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [each.name for each in PROBLEMS]
    parser.add_argument("--problems", nargs="+", choices=names, metavar="NAME", default=names)
    parser.add_argument("--modes", nargs="+", choices=MODES, metavar="NAME", default=list(USUAL))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    modes = list(dict.fromkeys(["Keras", *options.modes]))
    lines: list[dict[str, Any]] = []
    for problem in (each for each in PROBLEMS if each.name in options.problems):
        runs: dict[str, list[Run]] = {mode: [] for mode in modes}
        for seed in range(options.seeds):
            for mode in modes:
                runs[mode].append(train(problem, mode, seed))
                print(f"{problem.name}, seed {seed}, {mode}: {runs[mode][-1]}", flush=True)
        lines += [line(problem, mode, runs[mode], runs["Keras"]) for mode in modes]
        show(lines)
    if (options.problems, options.modes) == (names, list(USUAL)):
        (BENCH.parent / "learning.json").write_text(json.dumps(lines, indent=1) + "\n")
    print(markdown(lines))
    outside = [x for x in lines if x["mode"] in DEFAULTS and x["behind"] and not x["told"]]
    for each in outside:
        print(f"BEHIND, and no report says so: {each['problem']}, {each['mode']}")
    return 1 if outside else 0


def markdown(lines: list[dict[str, Any]]) -> str:
    """A table for the documentation: plain Keras, and how much more or less each default learned.

    After the sign of plus or minus is the spread over the seeds. What is behind is first.
    """
    rows = []
    for problem in dict.fromkeys(each["problem"] for each in lines):
        of = {each["mode"]: each for each in lines if each["problem"] == problem}
        given = [of[mode] for mode in DEFAULTS if mode in of]
        cells = [f"{of['Keras']['metric']:.4f} ± {of['Keras']['spread']:.4f}"]
        for mode in DEFAULTS:
            each = of.get(mode)
            cells.append(f"{each['difference']:+.4f} ± {each['spread']:.4f}" if each else "")
        behind = [each["mode"] for each in given if each["behind"]]
        updates = max((each["updates"] for each in given), default=0)
        row = " | ".join([problem, f"{updates:,}", *cells, ", ".join(behind)])
        rows.append((not behind, f"| {row} |"))
    head = "| " + " | ".join(["problem", "updates", "plain Keras", *DEFAULTS, "behind"]) + " |"
    rows.sort(key=lambda row: row[0])
    return "\n".join([head, "| --- " * (4 + len(DEFAULTS)) + "|", *(text for _, text in rows)])


def show(lines: list[dict[str, Any]]) -> None:
    """Print the table, what is behind first."""
    heads = (
        "problem",
        "mode",
        "metric",
        "spread",
        "difference",
        "updates",
        "staleness",
        "samples/s",
    )
    table = Table(*heads, "")
    for each in sorted(lines, key=lambda each: not each["behind"]):
        table.add_row(
            *(each["problem"], each["mode"], f"{each['metric']:.4f}", f"{each['spread']:.4f}"),
            *(f"{each['difference']:+.4f}", str(each["updates"]), f"{each['staleness']:.2f}"),
            f"{each['samples_per_second']:,.0f}",
            ("behind" + (", told" if each["told"] else "")) if each["behind"] else "",
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    raise SystemExit(main())
