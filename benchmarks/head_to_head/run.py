"""shoal beside other systems: speed, memory, start-up and AUC of one pass, and kills.

    python -m benchmarks head-to-head [--ids N ...] [--rounds N] [--systems NAME ...]
        [--records N] [--kills]

All systems train the same DeepFM (26 columns of ids, dim 16, Adagrad) over the same records once;
docs/head-to-head.md tells how. They take turns, in an order drawn for each round, as this kind of
machine's speed drifts. Those of other environments get one each below build/peers at first. With
--kills, each system's worker and then its server is killed in the middle of a pass instead. Prints
tables and writes build/bench/head_to_head.json, where results of other numbers of ids and of other
systems are kept. A system that cannot be installed or that fails is in the table with its reason.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.head_to_head import stream, table
from benchmarks.head_to_head.systems import SYSTEMS, System, install
from benchmarks.head_to_head.watch import Run, kill

OUTPUT = Path("build/bench/head_to_head.json")
WORK = Path("build/bench/head-to-head")
LIMIT_SECONDS = 900
"""Of one run."""
BLIND_SECONDS = 3
"""So long after the warm-up is killed who does not tell of half of the pass."""
HANG_SECONDS = 120
"""A run in which nothing is trained for so long after a kill hangs."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ids", type=int, nargs="+", default=[1_000_000, 10_000_000, 30_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--records", type=int, default=1 << 20, help="of the pass")
    parser.add_argument("--held", type=int, default=200_000, help="records for the AUC")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--warm", type=int, default=32, help="minibatches that are not timed")
    parser.add_argument("--cores", default="0,1", help="as taskset takes them")
    parser.add_argument("--kills", action="store_true", help="kill instead of measuring")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    return parser.parse_args()


def prepared(options: argparse.Namespace, ids: int) -> tuple[Path, dict[str, float]]:
    """The folder of the records in all forms, and what made them."""
    folder = WORK / f"data-{ids}-{options.records}"
    described = stream.prepared(folder, ids, options.records, options.held)
    if "paddle" in options.systems:
        stream.text(folder, options.batch, options.warm)
    return folder, described


def installed(names: list[str]) -> dict[str, str]:
    """Make the environments; returns by system why its own could not be made."""
    failures: dict[str, str] = {}
    for name in names:
        environment = SYSTEMS[name].environment
        if not environment:
            continue
        try:
            install(environment)
        except subprocess.CalledProcessError as error:
            said = (error.stderr or str(error)).strip().splitlines()
            failures[name] = f"not installed: {said[-1][:200]}"
    return failures


def measured(
    options: argparse.Namespace, ids: int, failures: dict[str, str]
) -> dict[str, list[dict[str, Any]]]:
    """The lines of all runs by system, which took turns."""
    folder, described = prepared(options, ids)
    print(f"{ids:,} ids, {options.records:,} records, best AUC {described['best_auc']:.4f}")
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in options.systems}
    for number in range(options.rounds):
        # No system always runs after the same one, whose memory and files it would find.
        for name in random.Random(number).sample(options.systems, len(options.systems)):
            if name in failures:
                rounds[name].append({"failed": failures[name]})
                continue
            run = started(options, SYSTEMS[name], folder, ids)
            try:
                in_time = run.wait(LIMIT_SECONDS)
            finally:
                run.stop()
            line = run.line() if in_time else {"failed": f"not done after {LIMIT_SECONDS} s"}
            rounds[name].append(line)
            print(f"round {number + 1}, {name}: {told(line)}", flush=True)
    return rounds


def started(options: argparse.Namespace, system: System, folder: Path, ids: int) -> Run:
    """A run of a system that has begun."""
    at = WORK / "runs" / system.name
    return Run(system, folder, at, ids, options.batch, options.warm, options.cores)


def told(line: dict[str, Any]) -> str:
    """A run in a few words."""
    if "failed" in line:
        return f"failed: {line['failed']}"
    rate = line["records"] / line["seconds"]
    cpu = f", {line['cpu_seconds']:.1f} s of CPU a million" if line["cpu_seconds"] else ""
    return (
        f"{rate:,.0f} samples/s{cpu}, AUC {line['auc']:.4f}, {line['peak_mb']:,.0f} MB, "
        f"first step after {line['start_seconds']:.1f} s, whole {line['whole_seconds']:.1f} s"
    )


def killed(
    options: argparse.Namespace, ids: int, failures: dict[str, str]
) -> dict[str, dict[str, Any]]:
    """The outcomes by system and role."""
    folder, _ = prepared(options, ids)
    found: dict[str, dict[str, Any]] = {}
    for name in options.systems:
        system = SYSTEMS[name]
        found[name] = {}
        for role in ("worker", "server") if system.kind == "server" else ("worker",):
            if name in failures:
                found[name][role] = {"outcome": "not killed", "said": failures[name]}
                continue
            run = started(options, system, folder, ids)
            at, after = options.records // 2, 0.0
            if system.blind:
                at, after = options.warm * options.batch, BLIND_SECONDS
            try:
                result = kill(run, role, at, after, options.batch, HANG_SECONDS, LIMIT_SECONDS)
            finally:
                run.stop()
            found[name][role] = result
            print(f"{name}, {role}: {json.dumps(result)}", flush=True)
    return found


def main() -> None:
    """Measure or kill, print and write."""
    options = arguments()
    # So that what runs ends with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    failures = installed(options.systems)
    kept = json.loads(options.output.read_text()) if options.output.exists() else {}
    kept["machine"] = {"cores": options.cores, "of": os.cpu_count(), "system": platform.platform()}
    for ids in options.ids:
        case = kept.setdefault(f"{ids} ids, {options.records} records", {})
        case["when"] = time.strftime("%Y-%m-%d")
        if options.kills:
            case.setdefault("kills", {}).update(killed(options, ids, failures))
            print(table.kills_markdown(case["kills"]))
        else:
            case.setdefault("rounds", {}).update(measured(options, ids, failures))
            case["summary"] = table.summary(case["rounds"])
            print(table.markdown(case["summary"]))
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(kept, indent=1) + "\n")
    print(f"written to {options.output}")


if __name__ == "__main__":
    main()
