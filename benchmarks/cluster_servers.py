"""The server's CPU time a step of one job: as pods with mutual TLS, and as processes with sockets.

    eval "$(KUBE/up)"; python tests/kubernetes/image.py KUBE; python benchmarks/cluster_servers.py

The job is the DeepFM of MovieLens, with one worker and one server, in turns here and on a
cluster whose node is this machine. Prints milliseconds of CPU time a step of each, and their ratio.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.kubernetes.image import IMAGE, PACKAGES_MOUNT, packages  # noqa: E402
from tests.kubernetes.jobs import process_of, until  # noqa: E402

NAMESPACE = "bench-servers"
WARM_STEPS = 100
TICKS = os.sysconf("SC_CLK_TCK")


def local_server(folder: Path) -> int | None:
    """The process of the server of the job in a folder."""
    found = subprocess.run(
        ["pgrep", "--full", f"shoal.ps .*{folder}"], stdout=subprocess.PIPE, text=True
    )
    numbers = found.stdout.split()
    return int(numbers[0]) if numbers else None


def cpu_seconds(process: int) -> float:
    """Seconds of CPU time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def steps(folder: Path) -> int:
    """Pushes that the server has applied, as metrics.csv had it last."""
    with contextlib.suppress(OSError, IndexError), (folder / "metrics.csv").open() as file:
        return int(list(csv.DictReader(file))[-1]["version"] or 0)
    return 0


@contextlib.contextmanager
def job(folder: Path, batch: int, flags: list[str]) -> Iterator[None]:
    """Run a job that trains until it is interrupted."""
    own = ["--batch-size", str(batch), "--epochs", "100000", "--checkpoint-seconds", "0"]
    own += ["--durability", "checkpoint", "--metrics-seconds", "1", "--job-name", "servers"]
    with (folder / "output").open("w") as output:
        train = subprocess.Popen(
            [sys.executable, "-m", "shoal", "train", *own, *flags],
            cwd=folder,
            stdout=output,
            stderr=output,
        )
    try:
        yield
        assert train.poll() is None, (folder / "output").read_text()
    finally:
        train.send_signal(signal.SIGINT)
        train.wait()


def measured(folder: Path, batch: int, seconds: float, *, pods: bool) -> float:
    """Milliseconds of the server's CPU time a step."""
    shutil.copy(ROOT / "build" / "movielens" / "train.parquet", folder)
    folder.chmod(0o777)
    flags = ["--model-def", "deepfm.custom_model", "--job-dir", str(folder / "job")]
    flags += ["--training-data", str(folder / "train.parquet")]
    if pods:
        volume = f"hostPath={folder},mount={folder};"
        volume += f"hostPath={packages()},mount={PACKAGES_MOUNT},readOnly"
        flags += ["--image", IMAGE, "--namespace", NAMESPACE, "--volume", volume]
        flags += ["--model-zoo", "/model_zoo/movielens"]
        for role in ("master", "ps", "worker"):
            flags += [f"--{role}-resources", "cpu=0.05,memory=100Mi"]
    else:
        flags += ["--model-zoo", str(ROOT / "model_zoo" / "movielens")]
    with job(folder, batch, flags):
        until("the job trains", lambda: steps(folder / "job") > WARM_STEPS)
        server = process_of("shoal.ps", NAMESPACE) if pods else local_server(folder / "job")
        assert server is not None
        before = steps(folder / "job"), cpu_seconds(server)
        time.sleep(seconds)
        after = steps(folder / "job"), cpu_seconds(server)
    return 1000 * (after[1] - before[1]) / (after[0] - before[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=15.0)
    options = parser.parse_args()
    subprocess.run(["kubectl", "create", "namespace", NAMESPACE], check=True)
    rights = str(ROOT / "deploy" / "base" / "rbac.yaml")
    subprocess.run(["kubectl", "apply", "-f", rights, "--namespace", NAMESPACE], check=True)
    ratios = []
    try:
        for turn in range(options.turns):
            found = {}
            for pods in (False, True) if turn % 2 else (True, False):
                with tempfile.TemporaryDirectory(dir="/var/tmp") as made:
                    folder = Path(made)
                    found[pods] = measured(folder, options.batch, options.seconds, pods=pods)
            ratios.append(found[True] / found[False])
            print(
                f"turn {turn + 1}: {found[True]:.3f} ms a step as pods, {found[False]:.3f} ms as "
                f"processes, ratio {ratios[-1]:.2f}",
                flush=True,
            )
        print(f"median ratio {statistics.median(ratios):.2f}")
    finally:
        subprocess.run(["kubectl", "delete", "namespace", NAMESPACE, "--wait=false"], check=True)


if __name__ == "__main__":
    main()
