"""Whole jobs as a user runs them: `python -m shoal ...` and what it leaves behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.base.disk.job_folder import JobFolder
from shoal.checkpoints.folders import Checkpoint, folder_name, numbers
from shoal.checkpoints.formats.manifests import MANIFEST
from shoal.client.found.processes import job_processes, kill_job
from shoal.config.job import JobConfig
from shoal.files.storage import open_storage
from shoal.master.job.events import CheckpointTaken, JobStopped
from shoal.master.journal import segments
from shoal.master.journal.reading import read
from shoal.master.journal.segments import Segment
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.errors import PeerUnavailableError, WireError
from shoal.proto.wire.transport import peer_name
from shoal.security.identities import client_identity
from shoal.seed import kinds
from shoal.seed.pool import Pool, named_folder
from shoal.seed.starting import prepared
from tests.master.journal.replayed import replay_differences
from tests.waiting import PATIENCE, until

ZOO = Path(__file__).with_name("zoo")
HIDDEN = Path(__file__).with_name("hidden")
"""Libraries that Keras imports if they are there, which no job of these needs: they are a quarter
of what it costs to start a worker."""
# The command itself is forked, too, where the tests have seeds.
kinds.KINDS["shoal"] = "command"
kinds.IMPORTS["command"] = (
    "shoal.cli.main",
    "shoal.client.run.local",
    "shoal.data",
    "shoal.proto.channels.rpc",
)
kinds.LATER["command"] = ("shoal.checkpoints.found", "shoal.checkpoints.formats.schema")
ENGINE = "ENGINE_OF_TESTS"
"""The variable with the engine whose models in zoo/by_ENGINE/ are in the place of those in zoo/."""
MODELS = {"export": "keras,savedmodel"}
"""What an export has besides tables and dense values, if nothing else is asked for."""
IN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C typed there is for this process now
os.execv(sys.argv[1], sys.argv[1:])
"""


def environment_of(**more):
    """That of a job's processes, in which libraries are hidden.

    more: variables of shoal, and of the modules in zoo/, whose names have the prefix there.
    """
    path = os.pathsep.join(filter(None, [str(HIDDEN), os.environ.get("PYTHONPATH")]))
    named = {
        name if name.startswith("SHOAL_") else f"SHOAL_TEST_{name}": more[name] for name in more
    }
    return {**os.environ, "PYTHONPATH": path, **named}


def by_engine(engine, fields, environment):
    """The fields with the same model for another engine; skips the test if there is none."""
    model = fields["model_def"]
    path = ZOO / f"by_{engine}" / model.replace(".custom_model", ".py")
    if fields.get("model_zoo", ZOO) != ZOO or not path.exists():
        pytest.skip(f"there is no {model} for {engine}")
    if {"SHUFFLE", "LEAVES"} & environment.keys():
        pytest.skip("only feed() of TensorFlow changes the number or order of records")
    changed = {"model_def": f"by_{engine}.{model}"}
    if fields.get("export") == MODELS["export"]:
        changed["export"] = "auto"
    return fields | changed


@dataclass(frozen=True)
class Ended:
    """A command that has ended. result: result.json, None if there is none."""

    code: int
    out: str
    err: str
    result: dict | None

    @property
    def ledger(self):
        return self.result["ledger"]

    def degraded(self):
        """Self, checked: the job came to its end, and updates stayed lost."""
        assert self.code == 1, self.out + self.err
        assert self.result["state"] == "degraded"
        return self

    def succeeded(self):
        """Self, checked: the job succeeded and its ledger adds up."""
        assert self.code == 0, self.out + self.err
        assert self.result["state"] == "succeeded"
        ledger = dict(self.ledger)
        assert ledger.pop("total") == sum(ledger.values())
        assert ledger["failed"] == ledger["pending"] == 0
        return self


def arguments_of(command, **fields):
    """The command line of a job: epochs=2 becomes --epochs 2, True a bare flag.

    A list becomes the flag with each of its values.
    """
    line = [sys.executable, "-m", "shoal", command]
    for name, value in fields.items():
        for each in value if isinstance(value, list) else [value]:
            line += [f"--{name.replace('_', '-')}"] + ([] if each is True else [str(each)])
    return line


class Command:
    """A command under way, as subprocess.Popen has it."""

    def __init__(self, process):
        self._process = process
        self.pid = process.pid
        self.returncode = None

    def poll(self):
        if self.returncode is None and self._process.wait(0):
            self.returncode = self._process.reap()
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None and not self._process.wait(timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self.poll()

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class RunningJob:
    """A job under way; a context manager that leaves no process, whatever the test did.

    folder: the working directory; the job's folder is `folder`/`name`.
    environment: more variables, which reach the user's module in the workers.
    terminal: a terminal's file descriptor, to be the command's own as in a shell.
    out: a file descriptor for standard output, which is closed here.
    fields: of JobConfig. The two models are half of a small job's computing: an output has them
    only with `**MODELS`.
    """

    def __init__(
        self, command, folder, name, *, environment=None, terminal=None, out=None, **fields
    ):
        self.folder = JobFolder(folder / name)
        self.gate = Path(f"{self.folder.path}.gate")
        self.gate.mkdir(exist_ok=True)
        self._outputs = [Path(f"{self.folder.path}.{stream}") for stream in ("out", "err")]
        defaults = {"model_zoo": ZOO, "job_name": name, "job_dir": self.folder.path}
        if command == "train" and "output" in fields:
            defaults["export"] = "none"
        if (engine := os.environ.get(ENGINE)) and "model_def" in fields:
            fields = by_engine(engine, fields, environment or {})
        line = arguments_of(command, **(defaults | fields))
        environment = environment_of(**{"GATE": str(self.gate), **(environment or {})})
        self._outputs[0].touch()
        with open(out or self._outputs[0], "w") as out, self._outputs[1].open("w") as err:
            if terminal is None:
                pool = Pool.of(self.folder)
                self.process = Command(prepared(line[1:], environment, pool, str(folder))(out, err))
            else:
                self.process = subprocess.Popen(
                    [sys.executable, "-c", IN_TERMINAL, *line],
                    cwd=folder,
                    stdin=terminal,
                    stdout=terminal,
                    stderr=terminal,
                    env=environment,
                    start_new_session=True,
                )
        self._connections = {}

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        self.process.kill()
        self.process.wait()
        kill_job(self.folder.config)
        for connection in self._connections.values():
            connection.close()
        if error is None:
            assert not replay_differences(self.folder.journal)

    # ------------------------------------------------------------ looking

    def call(self, address, role, index, method, request):
        """Call a process of the job; None if it does not answer."""
        if address not in self._connections:
            config = JobConfig.load(self.folder.config)
            self._connections[address] = Connection(
                address,
                deadline=5.0,
                patience=0.0,
                peer=peer_name(config.token, role, index),
                identity=client_identity(config, self.folder),
            )
        with contextlib.suppress(PeerUnavailableError, WireError):
            return self._connections[address].call(method, request)
        return None

    def call_master(self, method, request):
        try:
            address = json.loads(self.folder.master.read_text())["address"]
        except (OSError, ValueError):
            return None
        return self.call(address, "master", 0, method, request)

    def ask_master(self, method, request):
        """The answer of the master, which may be busy for seconds."""
        return until("the master's answer", lambda: self.call_master(method, request))

    def wait_status(self, what, holds):
        """The first status of the master for which holds(status)."""

        def look():
            assert self.process.poll() is None, f"ended before {what}:\n{self._text()}"
            status = self.call_master(methods.GET_JOB_STATUS, pb.JobStatusRequest())
            return status if status is not None and holds(status) else None

        return until(what, look)

    def call_status(self):
        """The master's status, once it answers."""
        return self.wait_status("an answer", lambda status: True)

    def server_status(self, index):
        """What a parameter server says of itself, once master and server answer."""

        def look():
            reply = self.call_master(methods.GET_ROUTING, pb.GetRoutingRequest())
            if reply is None or index >= len(reply.servers):
                return None
            address, request = reply.servers[index], pb.ServerStatusRequest()
            return self.call(address, "ps", index, methods.STATUS, request)

        return until(f"the status of ps-{index}", look)

    def events(self):
        """The events of the journal, of a job that may be running."""
        return [entry.event for entry in read(self.folder.journal)[1]]

    def taken(self):
        """The complete checkpoints that the journal knows of, in their order."""
        return [event.taken for event in self.events() if isinstance(event, CheckpointTaken)]

    def wait_taken(self, count=1, location=None):
        """The newest checkpoint of the job, opened, once its journal has `count` of them.

        A manifest on disk is not enough: a master, or one after it, restores those that it knows
        (`taken`).
        location: of the checkpoints, where that is not the job's folder.
        """

        until(f"checkpoint {count}", lambda: len(self.taken()) >= count)
        taken = self.taken()[-1]
        root = open_storage(str(location or self.folder.path / "checkpoints"))
        return Checkpoint(root, taken.number, taken.nonce)

    def pushes_apart(self):
        """{number of a complete checkpoint: pushes that one of its shards has more than another}.

        A checkpoint may be taken between the parts of a push, of the job's only worker here.
        """
        folder = self.folder.path / "checkpoints"
        root = open_storage(str(folder))
        apart = {}
        for number in numbers(root):
            if not (folder / folder_name(number) / MANIFEST).exists():
                continue  # it was being taken when the job was killed
            pushes = [shard["pushes"][0]["sequence"] for shard in Checkpoint(root, number).shards]
            apart[number] = max(pushes) - min(pushes)
        return apart

    def wait_told(self, index=0):
        """Wait until a server has been told of the last event of the journal there is."""

        def look():
            last = Segment(segments.segments(self.folder.journal)[-1]).last.number
            return self.server_status(index).journal.number >= last

        until("a server that knows of all events", look)

    def result(self):
        """What result.json says."""
        return json.loads(self.folder.result.read_text())

    def pid(self, role, index=0):
        """The process id of shoal.ROLE with this index; None if there is none."""
        for pid in job_processes(self.folder.config):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            except OSError:
                continue
            if f"shoal.{role}" in line and (
                role == "master" or line[line.index("--index") + 1] == str(index)
            ):
                return pid
        return None

    def left(self):
        """Process ids of the job's processes, but for the command itself and its seeds."""
        left = []
        for pid in job_processes(self.folder.config):
            with contextlib.suppress(OSError):
                if "shoal.seed" not in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                    left.append(pid)
        return left

    # ------------------------------------------------------------ gates and signals

    def at_gate(self, *names):
        """Wait until a worker stands at one of the gates (zoo/gates.py); its process id."""

        def look():
            assert self.process.poll() is None, f"ended before gate {names}:\n{self._text()}"
            for name in names:
                with contextlib.suppress(OSError, ValueError):
                    pid = int((self.gate / f"{name}.reached").read_text())
                    if pid in self.left():
                        return pid
            return None

        return until(f"gate {names}", look)

    def open(self, *names):
        """Let workers pass the gates, now and later."""
        for name in names:
            (self.gate / f"{name}.open").touch()

    def kill(self, role, index=0, number=signal.SIGKILL):
        """Send a process a signal, which must be there to get it.

        Returns after SIGKILL when the process has ended: the signal is only on its way
        when os.kill returns.
        """
        pid = self.pid(role, index)
        assert pid is not None, f"there is no {role}-{index}"
        os.kill(pid, number)
        if number == signal.SIGKILL:
            until(f"the end of {role}-{index}", lambda: pid not in self.left())

    def interrupt(self):
        """Interrupt the command, as Ctrl-C does, and wait until the job has heard of it."""
        self.process.send_signal(signal.SIGINT)
        until("word of it", lambda: any(isinstance(event, JobStopped) for event in self.events()))

    def kill_whole(self):
        """Kill the command and all processes at once, as when a machine loses its power."""
        for pid in [self.process.pid, *self.left()]:
            os.kill(pid, signal.SIGSTOP)
        self.process.kill()
        kill_job(self.folder.config)
        self.process.wait()

    # ------------------------------------------------------------ the end

    def _text(self):
        return "".join(path.read_text(errors="replace") for path in self._outputs)

    def ended(self):
        """Wait for the command's end. Whatever it was, no process may be left."""
        code = self.process.wait(PATIENCE)
        assert job_processes(self.folder.config) == [], "processes were left behind"
        assert not self.folder.master.exists() or code not in (0, 130)
        out, err = (path.read_text(errors="replace") for path in self._outputs)
        result = None
        if self.folder.result.exists():
            result = json.loads(self.folder.result.read_text())
        return Ended(code, out, err, result)


def completed(line, folder=None, environment=None):
    """A command that has ended, as of subprocess.run; forked where the tests have seeds.

    line: of `arguments_of`, or as long as it. environment: all of it; None: of `environment_of`.
    """
    named = named_folder()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        environment = environment_of() if environment is None else environment
        words, pool = [str(word) for word in line[1:]], named and Pool(named)
        process = Command(prepared(words, environment, pool, folder and str(folder))(out, err))
        try:
            code = process.wait(PATIENCE)
        finally:
            process.kill()
            process.wait()
        texts = [stream.seek(0) or stream.read().decode() for stream in (out, err)]
    return subprocess.CompletedProcess(line, code, *texts)


def audited(folder, *, clean=True):
    """What `shoal audit --json` says of a job; clean: that all is accounted for, or not."""
    done = completed([sys.executable, "-m", "shoal", "audit", folder.path, "--json"])
    assert done.returncode == (0 if clean else 1), done.stdout + done.stderr
    return json.loads(done.stdout)


def run(command, folder, name, **fields):
    """A job from start to end."""
    with RunningJob(command, folder, name, **fields) as job:
        return job.ended()


def resume(folder, environment=None, **more):
    variables = {"GATE": f"{folder.path}.gate", **(environment or {})}
    line = arguments_of("train", resume=folder.path, **more)
    return completed(line, environment=environment_of(**variables))
