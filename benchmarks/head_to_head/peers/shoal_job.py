"""A whole `shoal train` with one worker and one server, of the engine that is named first.

Its durability is the default: a log of updates in files. It reads Parquet. Records that are trained
are the server's pushes, looked up every 50 ms.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import common

ROOT = common.HERE.parents[2]
sys.path.insert(0, str(ROOT))
MODELS = {"tensorflow": "model", "torch": "model_torch", "jax": "model_jax"}
POLL_SECONDS = 0.05


def main() -> None:
    given = common.options("engine")
    import psutil

    from benchmarks.end_to_end.run import Shoal
    from shoal.proto import methods
    from shoal.proto import shoal_pb2 as pb
    from shoal.proto.errors import PeerUnavailableError

    class Job(Shoal):
        """The connection to the server and its steps, of a job that this script starts."""

        def __init__(self, folder: Path) -> None:
            self._job = folder

        def reached(self, process: subprocess.Popen):
            return self._server(process)

        def steps(self, server) -> int:
            request = pb.ServerStatusRequest()
            return int(server.call(methods.STATUS, request, deadline=5, patience=0).version)

    folder = (given.dir / "job").resolve()
    (folder / "master.json").unlink(missing_ok=True)  # an earlier run's
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "shoal", "train", "--job-name", f"beside-{given.engine}"),
            *("--job-dir", str(folder), "--overwrite"),
            *("--model-zoo", str(common.END_TO_END)),
            *("--model-def", f"{MODELS[given.engine]}.custom_model"),
            *(
                "--model-params",
                f"rate={common.RATE},accumulator={common.ACCUMULATOR},epsilon={common.EPSILON}",
            ),
            *("--training-data", str(given.data / "train.parquet")),
            *("--validation-data", str(given.data / "validation.parquet")),
            *("--evaluation-steps", "0", "--batch-size", str(given.batch)),
            *("--pipeline-depth", os.environ.get("HEAD_TO_HEAD_DEPTH", "-1")),
        ],
        stdout=sys.stderr,
        cwd=ROOT,
    )
    progress = common.Progress(given)
    job = Job(folder)

    def pids() -> dict[str, int]:
        found = {}
        for each in psutil.process_iter():
            try:
                words = each.cmdline()
            except psutil.Error:
                continue  # it has ended
            for role, module in (("worker", "shoal.worker"), ("server", "shoal.ps")):
                if module in words and str(folder / "job.json") in words:
                    found[role] = each.pid
        return found

    server, known = job.reached(process), {}
    steps = len(common.Data(given.data)) // given.batch
    while process.poll() is None and progress.records < steps * given.batch:
        try:
            progress.at(job.steps(server) * given.batch)
        except PeerUnavailableError:  # the server has died
            known = {}
            try:
                server = job.reached(process)
            except (PeerUnavailableError, SystemExit):
                time.sleep(POLL_SECONDS)  # nor the master answers: the job may be over
        if known.keys() != {"worker", "server"}:
            known = pids()
            progress.roles(**known)
        time.sleep(POLL_SECONDS)
    if process.wait():
        raise SystemExit(f"Error: shoal train ended with {process.returncode}")
    result = json.loads((folder / "result.json").read_text())
    told = {"ledger": result["ledger"], "lost_records": result["servers"]["lost_records"]}
    packages = {"tensorflow": "tensorflow_cpu", "torch": "torch", "jax": "jax"}
    progress.tell(result["metrics"]["auc"], "shoal", packages[given.engine], **told)


if __name__ == "__main__":
    main()
