"""Two jobs that want more than the node has: elastic against gang, on a cluster of one node.

    make bench-elastic

Runs deploy/demo/run.py's part `gang` on the cluster of `make test-kubernetes`, with the
tests' image and MovieLens: the first job wants six workers, and so does the second, and
the node has room for eleven. Elastic, the second begins with the five that fit, and gets the
sixth when the first has ended; as a gang, it waits for all six. These are the proportions of
ElasticDL's published runs, two jobs of 13 on 24 CPUs. Both in one run, REPEAT times in turn.

As a gang the second job begins when the first has ended. Elastic, it does five sixths of its work
beside the first, and the rest with six workers: so the limit of the ratio is (1 + 1/6) / 2.

The jobs wait for their data most of the time (elastic_zoo/slow.py), so their rate is that of their
workers' number, and what is compared is the scheduling and not the machine. What is left of the
machine's speed is the start of the processes: a worker may use no more of the processors than its
share, and takes a while to begin. Writes OUTPUT/elastic.json, with the limit, the elastic
efficiency (limit by ratio), and the share of time for which the machine's processors were busy.
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
from kubernetes.utils.quantity import parse_quantity

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.kubernetes.image import IMAGE, PACKAGES_MOUNT, packages  # noqa: E402

NAMESPACE = "bench-elastic"
SERVER_CPU, MASTER_CPU = 0.1, 0.02
MEASURES = ("total_seconds", "both_seconds", "second_first_step_seconds")


def kubectl(*words: str) -> None:
    """Run kubectl. Raises CalledProcessError."""
    subprocess.run(["kubectl", *words], check=True, stdout=subprocess.DEVNULL)


def flags(folder: Path, epochs: int) -> list[str]:
    """The flags of `shoal train` for a job of a minute or so."""
    given = {
        "image": IMAGE,
        "model-zoo": "/work/elastic_zoo",
        "model-def": "slow.custom_model",
        "training-data": "/work/train.parquet",
        "epochs": epochs,
        "num-minibatches-per-task": 1,
        "servers": 1,
        "checkpoint-seconds": 0,
        "master-resources": f"cpu={MASTER_CPU},memory=50Mi",
        "ps-resources": f"cpu={SERVER_CPU},memory=50Mi",
        "volume": f"hostPath={folder},mount=/work;"
        f"hostPath={packages()},mount={PACKAGES_MOUNT},readOnly",
    }
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def cpu_times() -> tuple[float, float]:
    """(busy, all) of this machine's processors since its start, in ticks."""
    numbers = [float(n) for n in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    idle = numbers[3] + numbers[4]
    return sum(numbers) - idle, sum(numbers)


def listed(*words: str) -> list[dict[str, Any]]:
    """The objects that `kubectl get` finds."""
    line = ["kubectl", "get", *words, "--output", "json"]
    done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True)
    items: list[dict[str, Any]] = json.loads(done.stdout)["items"]
    return items


def worker_cpu(slots: int) -> float:
    """Cores of a worker, of which the node has room for `slots`, beside two masters and servers."""
    (node,) = listed("nodes")
    free = float(parse_quantity(node["status"]["allocatable"]["cpu"]))
    for pod in listed("pods", "--all-namespaces"):
        for container in pod["spec"]["containers"]:
            asked = container["resources"].get("requests", {}).get("cpu", "0")
            free -= float(parse_quantity(asked))
    return int(1000 * (free - 2 * (SERVER_CPU + MASTER_CPU)) / (slots + 0.5)) / 1000


def one_run(folder: Path, epochs: int, workers: int, cpu: float) -> dict[str, Any]:
    """Elastic and gang, once each."""
    out = folder / "out"
    before = cpu_times()
    words = [str(out), "gang", "--namespace", NAMESPACE, "--workers", str(workers)]
    command = [sys.executable, str(ROOT / "deploy/demo/run.py"), *words, "--cpu", str(cpu), "--"]
    subprocess.run([*command, *flags(folder, epochs)], check=True)
    busy, whole = (after - first for after, first in zip(cpu_times(), before, strict=True))
    found: dict[str, Any] = json.loads((out / "gang.json").read_text())
    return found | {"machine_busy": round(busy / whole, 3)}


@click.command()
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--repeat", default=1, show_default=True, type=click.IntRange(1))
@click.option("--epochs", default=24, show_default=True, type=click.IntRange(1))
@click.option("--workers", default=6, show_default=True, type=click.IntRange(3), help="Of a job.")
@click.option("--slots", default=11, show_default=True, help="Workers that the node has room for.")
def main(output: Path, repeat: int, epochs: int, workers: int, slots: int) -> None:
    """Measure; see the top of this file."""
    if not workers < slots < 2 * workers:
        raise click.UsageError("--slots must be above --workers and below twice that")
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
            cpu = worker_cpu(slots)
            runs = [one_run(folder, epochs, workers, cpu) for _ in range(repeat)]
    finally:
        kubectl("delete", "-f", str(ROOT / "deploy/base/priorities.yaml"))
        kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    ratios = {
        measure: statistics.median(run["elastic_by_gang"][measure] for run in runs)
        for measure in MEASURES
    }
    # Beside the first job the second does a share of its work; the rest with all its workers.
    limit = (1 + (1 - (slots - workers) / workers)) / 2
    content = {
        "workers": workers,
        "slots": slots,
        "cpu": cpu,
        "runs": runs,
        "median_elastic_by_gang": ratios,
        "limit": round(limit, 3),
        "elastic_efficiency": round(limit / ratios["total_seconds"], 3),
    }
    (output / "elastic.json").write_text(json.dumps(content, indent=2) + "\n")
    print(json.dumps(content, indent=2))


if __name__ == "__main__":
    main()
