"""CPU time until a command has ended, and until a server or a master listens.

python -m benchmarks.startup [--against PATH] [--runs N]: PATH is another clone with its .venv,
measured in turns with this one. Prints the medians, in seconds of user and system time, and in
parentheses the least.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from shoal.base.job_folder import JobFolder
from shoal.client.found.processes import kill_job
from shoal.config.job import JobConfig

COMMANDS = ("--help", "train --help", "status over", "jobs")
CONFIG = "--config shoal-jobs/over/job.json"
ROLES = {"ps": (f"{CONFIG} --index 0", "listening on"), "master": (CONFIG, "serving on")}
FUNCTIONS = ("custom_model", "loss", "optimizer", "feed")
JOB = "--model-zoo . --model-def m.custom_model --training-data d.csv --job-name new --overwrite"


def command(python: str, text: str) -> float:
    """Until `shoal TEXT` has ended."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([python, "-m", "shoal", *text.split()], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def used(pid: int) -> float:
    """CPU seconds of a process so far, by its clock (man 3 clock_getcpuclockid)."""
    return time.clock_gettime(~pid << 3 | 2)


def role(python: str, name: str, job: JobFolder) -> float:
    """Until a server or a master listens."""
    text, listens = ROLES[name]
    arguments = [python, "-m", f"shoal.{name}", *text.split()]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(arguments, text=True, **output) as process:
        next(line for line in process.stdout if listens in line)
        seconds = used(process.pid)
        process.kill()
        kill_job(job.config)
    return seconds


def train(python: str, job: JobFolder) -> tuple[float, float]:
    """The client's CPU time until the job's master listens, and the seconds by the clock."""
    job.master.unlink(missing_ok=True)
    began = time.monotonic()
    arguments = [python, "-m", "shoal", "train", *JOB.split()]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL) as process:
        while not job.master.exists():
            time.sleep(0.001)
        seconds = used(process.pid), time.monotonic() - began
        process.kill()
    kill_job(job.config)
    return seconds


def measured(python: str, over: JobFolder, new: JobFolder) -> dict[str, float]:
    """Each figure of one clone, once."""
    found = {each: command(python, each) for each in COMMANDS}
    found |= {each: role(python, each, over) for each in ROLES}
    client, clock = train(python, new)
    return found | {"train: client": client, "train: master listens, by the clock": clock}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("--against", type=Path, metavar="PATH")
    parser.add_argument("--runs", type=int, default=15)
    arguments = parser.parse_args()
    clones = {"here": Path(__file__).absolute().parents[1]}
    clones |= {"against": arguments.against.absolute()} if arguments.against else {}
    seconds: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("m.py").write_text("".join(f"def {name}(*_): ...\n" for name in FUNCTIONS))
        Path("d.csv").write_text("x,y\n1,2\n")
        over, new = (JobFolder(Path(folder, "shoal-jobs", name)) for name in ("over", "new"))
        over.logs.mkdir(parents=True)
        model = {"model_def": "m.custom_model", "training_data": "d.csv"}
        config = JobConfig(command="train", job_name="over", **model)
        over.config.write_text(config.resolved().to_json())
        for number in range(arguments.runs + 1):
            for clone, path in clones.items():
                # Compiled files, as an installation has them.
                os.environ |= {"PYTHONPYCACHEPREFIX": str(path / "build" / "pycache")}
                os.environ["PYTHONDONTWRITEBYTECODE"] = ""
                result = {"job_name": "over", "command": "train", "state": "succeeded"}
                over.result.write_text(json.dumps(result))
                python = str(path / ".venv" / "bin" / "python")
                for each, value in measured(python, over, new).items() if number else ():
                    seconds.setdefault(each, {}).setdefault(clone, []).append(value)
    for each, by_clone in seconds.items():
        told = (f"{k} {statistics.median(v):.3f} ({min(v):.3f})" for k, v in by_clone.items())
        print(f"{each:<38}", *told)


if __name__ == "__main__":
    main()
