"""Who is not of the job gets nothing from its processes: of real jobs, as they run."""

import contextlib
import datetime as dt
import json
import os
import re
import shutil
import stat
import sys
from pathlib import Path

import pytest

from shoal.config.job import JobConfig
from shoal.proto import faults, methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.errors import PeerUnavailableError, WireError
from shoal.proto.identity import MASTER, ROLES, SERVER, WORKER
from shoal.proto.permissions import CALLERS, permitted
from shoal.proto.plane import hello
from shoal.proto.wire.transport import arrays_address, peer_name
from shoal.security.authority import Authority
from shoal.security.identities import own_identity
from shoal.tools.chaos.relay import Relay
from tests.jobs.running import RunningJob, completed, until
from tests.planted import LABEL, LABELS, PLANTED, row_of

pytestmark = pytest.mark.job

PAIRS = [
    ("worker-0", "ps-0"),
    ("worker-0", "ps-1"),
    ("worker-0", "master-0"),
    ("ps-0", "master-0"),
    ("master-0", "ps-0"),
]


class Tap(Relay):
    """A relay that keeps what goes through."""

    def __init__(self, folder, process, other):
        self.seen = []
        super().__init__(folder, process, other)

    def note(self, data):
        self.seen.append(data)


@contextlib.contextmanager
def tapped_job(folder, **how):
    """(job, its taps, the file that holds the worker before its first push)."""
    data = folder / "clicks.csv"
    data.write_text("user,item,label\n" + f"{PLANTED},1,{LABEL}\n2,3,0.0\n" * 50)
    arranged = folder / "faults"
    arranged.mkdir()
    held = faults.hold(arranged, "before-push", "worker-0")
    taps = [Tap(arranged, *pair) for pair in PAIRS]
    try:
        with RunningJob(
            "train",
            folder,
            "job",
            model_def="small.custom_model",
            training_data=data,
            output=folder / "out",
            export="none",
            batch_size=25,
            servers="2",
            environment={faults.VARIABLE: str(arranged)},
            **how,
        ) as job:
            job.wait_status("training", lambda status: status.state == "training")
            yield job, taps, held
    finally:
        for tap in taps:
            tap.close()


def call(address, role, config, method, identity):
    connection = Connection(
        address, patience=0.0, peer=peer_name(config.token, role), identity=identity
    )
    request = b"bytes" if method.request is bytes else method.request()
    try:
        if method.streaming:
            return list(connection.stream(method, request))
        label = method.label() if method.label else None
        return connection.result(method, connection.start(method, request, label=label))
    finally:
        connection.close()


def routing(job):
    return job.ask_master(methods.GET_ROUTING, pb.GetRoutingRequest())


def test_nobody_gets_in_without_the_right_certificate_and_nothing_is_in_the_clear(tmp_path):
    with tapped_job(tmp_path, tls="always") as (job, taps, held):
        config = JobConfig.load(job.folder.config)
        servers = routing(job).servers
        places = {MASTER: job.folder.master_address(), SERVER: servers[0]}

        for path in [job.folder.identities, *job.folder.identities.rglob("*")]:
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), path

        # Each call of each role that may not make it.
        refused = 0
        for role in ROLES:
            identity = own_identity(config, job.folder, role)
            for method in CALLERS:
                if permitted(method, role):
                    continue
                place = SERVER if method.service == methods.SERVER else MASTER
                with pytest.raises(WireError) as error:
                    call(places[place], place, config, method, identity)
                assert error.value.kind == pb.NOT_PERMITTED, method.name
                refused += 1
        assert refused > len(CALLERS)
        log = job.folder.log_of("ps", 0, 0).read_text()
        # One a second is told.
        assert re.search(rf"refused \w+ of \w+-0 of job {config.job_id}", log)

        # The master's own certificate does not name a folder: a server knows its own.
        elsewhere = tmp_path / "elsewhere"
        identity = own_identity(config, job.folder, MASTER)
        attempt = {"number": 1_000, "nonce": "5a" * 8}
        with_root = pb.WriteShardRequest(**attempt).SerializeToString()
        for field in range(3, 16):  # wherever the root of another version may have been
            place = str(elsewhere).encode()
            with_root += bytes([field << 3 | 2, len(place)]) + place
        connection = Connection(
            servers[0], patience=0.0, peer=peer_name(config.token, SERVER), identity=identity
        )

        def begun():
            """Once the worker has sent the first values."""
            with contextlib.suppress(WireError):
                request = pb.BeginCheckpointRequest(**attempt)
                return connection.call(methods.BEGIN_CHECKPOINT, request)

        until("the first values", begun)
        own = Path(config.checkpoint_dir) / "checkpoint-00001000"
        own.mkdir(parents=True)
        request = pb.WriteShardRequest.FromString(with_root)
        written = connection.call(methods.WRITE_SHARD, request)
        connection.call(methods.DROP_CHECKPOINT, pb.DropCheckpointRequest(**attempt))
        connection.close()
        assert not elsewhere.exists()
        shard = json.loads(written.shard)["manifest"]["name"]
        (found,) = tmp_path.rglob(shard)
        assert found.parent == own
        shutil.rmtree(own)

        # Strangers.
        authority = Authority.from_key(config.job_id, job.folder.authority_key.read_bytes())
        strangers = {
            "plain text": None,
            "another authority": Authority.made(config.job_id).issue(WORKER),
            "expired": authority.issue(WORKER, valid=dt.timedelta(hours=-1)),
        }
        for stranger in strangers.values():
            for place, method in ((SERVER, methods.PULL), (MASTER, methods.GET_TASK)):
                with pytest.raises(PeerUnavailableError):
                    call(places[place], place, config, method, stranger)

        # A worker that nobody thought of when the job began has a certificate, too.
        command = [sys.executable, "-m", "shoal", "scale", job.folder.path, "--workers", "2"]
        done = completed(command)
        assert done.returncode == 0, done.stdout + done.stderr
        until("worker-1", lambda: job.folder.identity_of(WORKER, 1).is_dir())
        held.unlink()
        job.ended().succeeded()
    secrets = [PLANTED.to_bytes(8, "little"), row_of(tmp_path / "out"), b"users", *LABELS]
    for tap in taps:
        captured = b"".join(tap.seen)
        assert captured
        assert [secret for secret in secrets if secret in captured] == []


def test_without_encryption_the_same_capture_holds_ids_and_rows(tmp_path):
    """So what the test above does not find would have been found."""
    with tapped_job(tmp_path, tls="never") as (job, taps, held):
        held.unlink()
        ended = job.ended().succeeded()
    assert "warning: --tls=never" in ended.out
    captured = b"".join(data for tap in taps for data in tap.seen)
    for secret in (PLANTED.to_bytes(8, "little"), row_of(tmp_path / "out"), b"users"):
        assert secret in captured
    assert [label for label in LABELS if label in captured] == []


@pytest.mark.parametrize("kind", ["c", "python"])
def test_a_job_has_tls_in_c_or_by_python_which_it_says(tmp_path, kind):
    data = tmp_path / "clicks.csv"
    data.write_text("user,item,label\n" + "1,1,1.0\n2,3,0.0\n" * 50)
    with RunningJob(
        "train",
        tmp_path,
        "job",
        model_def="small.custom_model",
        training_data=data,
        export="none",
        batch_size=25,
        servers="2",
        tls="always",
        environment={hello.PYTHON_VARIABLE: kind},
    ) as job:
        ended = job.ended().succeeded()
    said = "calls with certificates go through Python's ssl"
    assert ended.out.count(said) == (kind == "python")
    for role in ("ps", "worker"):
        assert (said in job.folder.log_of(role, 0, 0).read_text()) == (kind == "python")


def listening(process):
    """Ports at which a process listens."""
    mine = set()
    with contextlib.suppress(OSError):  # a file, or the process, that was there a moment ago
        for each in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                mine.add(os.readlink(each))
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine:
                found.append(fields[1])
    return found


def test_a_job_of_one_machine_listens_where_its_user_alone_can_call(tmp_path):
    with tapped_job(tmp_path) as (job, _, held):
        servers = routing(job).servers
        assert len(servers) == 2
        arrays = map(arrays_address, servers)
        for address in (job.folder.master_address(), *servers, *arrays):
            socket = Path(address.removeprefix("unix:"))
            assert socket.is_socket()
            above = socket.parent.stat()
            assert (stat.S_IMODE(above.st_mode), above.st_uid) == (0o700, os.geteuid())
        found = {process: listening(process) for process in job.left()}
        assert len(found) >= 4
        assert not any(found.values())
        assert not job.folder.identities.exists()
        held.unlink()
        job.ended().succeeded()
        assert not socket.parent.exists()
