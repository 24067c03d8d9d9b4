"""Two jobs that want more than the node has: elastic against gang, on a cluster of one node.

    make bench-elastic

Runs deploy/demo/run.py's part `gang` on the cluster of `make test-kubernetes`, with the
tests' image and MovieLens: the first job wants three workers, and so does the second, and
the node has room for four. Elastic, the second begins with the one that fits, and gets more
when the first has ended; as a gang, it waits for all three. Both in one run, REPEAT times in
turn. The jobs wait for their data most of the time (elastic_zoo/slow.py), so their rate is that
of their workers' number, and what is compared is the scheduling and not the machine. What is
left of the machine's speed is the start of the processes. Writes OUTPUT/elastic.json, with the
share of time for which the machine's processors were busy.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.kubernetes.image import IMAGE, PACKAGES_MOUNT, packages  # noqa: E402

NAMESPACE = "bench-elastic"
WORKERS, CPU = 3, 0.4
MEASURES = ("total_seconds", "both_seconds", "second_first_step_seconds")


def kubectl(*words: str) -> None:
    """Run kubectl. Raises CalledProcessError."""
    subprocess.run(["kubectl", *words], check=True, stdout=subprocess.DEVNULL)


def flags(folder: Path, epochs: int) -> list[str]:
    """Of `shoal train`, for a job of a minute or so."""
    given = {
        "image": IMAGE,
        "image-pull-policy": "Never",
        "model-zoo": "/work/elastic_zoo",
        "model-def": "slow.custom_model",
        "training-data": "/work/train.parquet",
        "num-epochs": epochs,
        "num-minibatches-per-task": 1,
        "num-ps": 1,
        "checkpoint-seconds": 0,
        "master-resource-request": "cpu=0.02,memory=50Mi",
        "ps-resource-request": "cpu=0.1,memory=50Mi",
        "volume": f"hostPath={folder},mount=/work;"
        f"hostPath={packages()},mount={PACKAGES_MOUNT},readOnly",
    }
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def cpu_times() -> tuple[float, float]:
    """(busy, all) of this machine's processors since its start, in ticks."""
    numbers = [float(n) for n in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    idle = numbers[3] + numbers[4]
    return sum(numbers) - idle, sum(numbers)


def one_run(folder: Path, epochs: int) -> dict[str, Any]:
    """Elastic and gang, once each."""
    out = folder / "out"
    before = cpu_times()
    words = [str(out), "gang", "--namespace", NAMESPACE, "--workers", str(WORKERS)]
    command = [sys.executable, str(ROOT / "deploy/demo/run.py"), *words, "--cpu", str(CPU), "--"]
    subprocess.run([*command, *flags(folder, epochs)], check=True)
    busy, whole = (after - first for after, first in zip(cpu_times(), before, strict=True))
    found: dict[str, Any] = json.loads((out / "gang.json").read_text())
    return found | {"machine_busy": round(busy / whole, 3)}


@click.command()
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--repeat", default=1, show_default=True, type=click.IntRange(1))
@click.option("--epochs", default=3, show_default=True, type=click.IntRange(1))
def main(output: Path, repeat: int, epochs: int) -> None:
    """Measure; see the top of this file."""
    output.mkdir(parents=True, exist_ok=True)
    kubectl("create", "namespace", NAMESPACE)
    runs = []
    try:
        kubectl("apply", "-n", NAMESPACE, "-f", str(ROOT / "deploy/base/rbac.yaml"))
        kubectl("apply", "-f", str(ROOT / "deploy/base/priorities.yaml"))
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            folder.chmod(0o755)
            shutil.copy(ROOT / "build/movielens/validation.parquet", folder / "train.parquet")
            shutil.copytree(ROOT / "benchmarks/elastic_zoo", folder / "elastic_zoo")
            runs = [one_run(folder, epochs) for _ in range(repeat)]
    finally:
        kubectl("delete", "-f", str(ROOT / "deploy/base/priorities.yaml"))
        kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    ratios = {
        measure: statistics.median(run["elastic_by_gang"][measure] for run in runs)
        for measure in MEASURES
    }
    content = {"runs": runs, "median_elastic_by_gang": ratios}
    (output / "elastic.json").write_text(json.dumps(content, indent=2) + "\n")
    print(json.dumps(content, indent=2))


if __name__ == "__main__":
    main()
