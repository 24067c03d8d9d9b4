"""Seconds by the clock until a job trains, and until a killed worker trains again.

python -m benchmarks.first_step [--against PATH] [--runs N]: PATH is another clone with its .venv,
measured in turns with this one. The job is DeepFM on MovieLens-100K (`make demo` fetches it) with
two servers and two workers. Prints the medians, and in parentheses the least.
"""

import argparse
import os
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from shoal.base.job_folder import JobFolder
from shoal.client.found.processes import job_processes, kill_job

ROOT = Path(__file__).absolute().parents[1]
MODEL = """
import os, time
import tensorflow as tf
from deepfm import *

told = set()

def stepped():
    if os.getpid() not in told:
        told.add(os.getpid())
        with open(os.environ["STEPS"], "a") as file:
            file.write(f"{os.getpid()} {time.time()}\\n")
    return 0.0

def loss(labels, predictions):
    first = tf.cast(tf.numpy_function(stepped, [], tf.float64), tf.float32)
    return first + tf.reduce_mean(tf.keras.losses.binary_crossentropy(labels, predictions))
"""
EACH = ("first step of a worker", "first step of the last worker", "step after a kill", "again")


def measured(python: Path, folder: Path) -> list[float]:
    """Seconds from the command to the first step of either worker, and from a kill to its own.

    Two kills, one after the other: of a worker and of the one in its place.
    """
    steps, job = folder / "steps", JobFolder(folder / "job")
    steps.write_text("")
    line = [str(python), "-m", "shoal", "train", "--model-zoo", str(folder), "--servers", "2"]
    line += ["--model-def", "stepping.custom_model", "--workers", "2", "--epochs", "1000"]
    line += ["--training-data", str(ROOT / "build" / "movielens" / "train.parquet")]
    line += ["--job-dir", str(job.path), "--job-name", "first", "--overwrite"]

    def stepped(count: int) -> tuple[int, float]:
        """The id of the process with the first step number `count`, and when that was."""
        while len(lines := steps.read_text().splitlines()) < count:
            time.sleep(0.005)
        pid, at = lines[count - 1].split()
        return int(pid), float(at)

    began, found = time.time(), []
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        found += [stepped(1)[1] - began, stepped(2)[1] - began]
        victim = stepped(1)[0]
        for count in (3, 4):
            killed = time.time()
            os.kill(victim, signal.SIGKILL)
            victim, at = stepped(count)
            found.append(at - killed)
        process.kill()
    kill_job(job.config)
    assert not job_processes(job.config)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_step", description=__doc__)
    parser.add_argument("--against", type=Path, metavar="PATH")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    clones = {"here": ROOT}
    clones |= {"against": arguments.against.absolute()} if arguments.against else {}
    seconds: dict[str, list[list[float]]] = {clone: [] for clone in clones}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        deepfm = ROOT / "model_zoo" / "movielens" / "deepfm.py"
        (folder / "deepfm.py").write_text(deepfm.read_text())
        (folder / "stepping.py").write_text(MODEL)
        os.chdir(folder)
        os.environ |= {"STEPS": str(folder / "steps"), "PYTHONDONTWRITEBYTECODE": ""}
        for number in range(arguments.runs + 1):
            for clone, path in clones.items():
                # Compiled files, as an installation has them: the first turn writes them.
                os.environ["PYTHONPYCACHEPREFIX"] = str(path / "build" / "pycache")
                found = measured(path / ".venv" / "bin" / "python", folder)
                if number:
                    seconds[clone].append(found)
    for each, name in enumerate(EACH):
        told = (
            f"{clone} {statistics.median(run[each] for run in runs):.2f} "
            f"({min(run[each] for run in runs):.2f})"
            for clone, runs in seconds.items()
        )
        print(f"{name:<32}", *told)


if __name__ == "__main__":
    main()
