"""A master that trains nothing: a real process and gRPC peer with a scripted end.

Run as `fake_master.py BEHAVIOUR --config JOB_JSON`.
"""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from shoal.base.disk.job_folder import JobFolder
from shoal.config.job import JobConfig
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import serving
from shoal.proto.protocol import own_protocol
from shoal.security.identities import own_identity

TRACE = """Traceback (most recent call last):
  File "/home/me/model.py", line 7, in feed
    raise ValueError("broken")
ValueError: broken
"""

behaviour, *_, config_path = sys.argv[1:]
config = JobConfig.load(config_path)
folder = JobFolder(Path(config_path).parent)
asked, stopped = threading.Event(), threading.Event()


def status(_request):
    asked.set()
    return pb.JobStatus(
        job_name=config.job_name,
        state="training",
        epochs=config.epochs,
        tasks_done=1,
        tasks_total=4,
        ledger=pb.Ledger(total=100, trained_once=25, pending=75),
        samples_per_second=1234.0,
        messages=["1.0 s: worker-0 died"],
        protocol=own_protocol(),
    )


def stop(_request):
    stopped.set()
    return pb.StopJobReply()


def finish(state, failure=None):
    result = {
        "job_name": config.job_name,
        "command": config.command,
        "state": state,
        "metrics": {"auc": 0.75, "loss": None},
        "ledger": {"total": 100, "trained_once": 90, "repeated": 10, "failed": 0, "pending": 0},
        "failure": failure,
        "output": config.output or None,
        "unknown": "of a later version",
    }
    folder.result.write_text(json.dumps(result))


if behaviour == "orphan":
    # A child with a role and the job's configuration in its arguments, as the launcher's have.
    role = ("-m", "shoal.worker", "--config", config_path)
    subprocess.Popen([sys.executable, __file__, "wait", *role])
    print("RuntimeError: the last words", flush=True)
    os._exit(3)

server, port = serving.serve(
    {methods.GET_JOB_STATUS: status, methods.STOP_JOB: stop},
    "127.0.0.1:0",
    threads=2,
    identity=own_identity(config, folder, "master"),
)
folder.master.write_text(json.dumps({"address": f"127.0.0.1:{port}", "pid": os.getpid()}))
asked.wait()
if behaviour == "succeed":
    finish("succeeded")
elif behaviour in ("USER_ERROR", "USER_CODE"):
    trace = TRACE if behaviour == "USER_CODE" else ""
    finish("failed", {"kind": behaviour, "message": "it broke", "traceback": trace})
elif behaviour == "wait":
    stopped.wait()
    finish("stopped")
elif behaviour == "stubborn":
    threading.Event().wait()
# With grace: the answer under way must reach the client.
server.stop(30).wait()
