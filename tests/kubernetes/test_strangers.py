"""Pods of a job are kept from strangers, and nobody can read what goes between them."""

import base64
import json
import os
import shutil
import stat
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from shoal.cluster.certificates import LEAST_SERVERS, LEAST_WORKERS
from shoal.cluster.pod_security import USER
from shoal.cluster.ports import MASTER_ARRAYS_PORT, PORTS
from shoal.proto.identity import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, POD_FOLDER, WORKER
from shoal.security.authority import Authority
from tests.cluster.pod_rules import violations
from tests.kubernetes.capture import Capture, addresses_of
from tests.kubernetes.conftest import ROOT, kubectl
from tests.kubernetes.image import IMAGE, PACKAGES_MOUNT, packages
from tests.kubernetes.jobs import ZOO, Watched, process_of, until
from tests.planted import LABEL, LABELS, PLANTED, row_of


def planted_job(shoal, name):
    """Flags of a job on data with the planted id; the file that holds it is made."""
    for path in (*ZOO.iterdir(), ROOT / "tests" / "jobs" / "zoo" / "small.py"):
        if path.suffix == ".py":
            (shoal.path / "zoo").mkdir(exist_ok=True)
            shutil.copy(path, shoal.path / "zoo")
    (shoal.path / "hold").touch()
    users, items = [PLANTED, 2] * 50, [1, 3] * 50
    table = pa.table({"user": users, "item": items, "label": [LABEL, 0.0] * 50})
    pq.write_table(table, shoal.path / "clicks.parquet")
    return shoal.flags(
        name,
        model_zoo="/work/zoo",
        model_def="planted.custom_model",
        training_data="/work/clicks.parquet",
        output="/work/out",
        job_dir="/work/job",
        export="none",
        batch_size="25",
        num_minibatches_per_task="1",
        epochs="30",
        servers="2",
        workers="1",
    )


def readable(shoal, capture, addresses):
    """What of a job's data the capture holds in the clear, of calls to all of its ports."""
    assert capture.lost <= capture.passed // 10, (capture.passed, capture.lost)
    seen = capture.between(addresses.values())
    called = {port for port, _ in seen}
    # Gradients are offered at the master's other port, with --sync.
    usual = {port for ports in PORTS.values() for port in ports.values()} - {MASTER_ARRAYS_PORT}
    assert called >= usual
    secrets = {
        "an id": PLANTED.to_bytes(8, "little"),
        "a row": row_of(shoal.path / "out"),
        "a table's name": b"users",
    } | {f"a label as {label!r}": label for label in LABELS}
    return {what for what, secret in secrets.items() if any(secret in packet for _, packet in seen)}


def end(shoal, job):
    """Have a job that is held end."""
    (shoal.path / "hold").unlink()
    until("the result", lambda: job.handle.result() is not None)
    assert json.loads(job.handle.result())["state"] == "succeeded"


def mounted_read_only(folder):
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def certificates(name, namespace):
    """Secret -> file -> content, of the Secrets of a job."""
    listed = kubectl(
        "get", "secrets", "-l", f"shoal.dev/job={name}", "-o", "json", namespace=namespace
    )
    return {
        secret["metadata"]["name"]: {
            key: base64.b64decode(value) for key, value in secret["data"].items()
        }
        for secret in json.loads(listed)["items"]
    }


def stranger_says(shoal, namespace, *arguments):
    """What became of the calls of zoo/stranger.py in a pod of its own."""
    mounts = {str(shoal.path): "/work", str(packages()): PACKAGES_MOUNT}
    volumes = [
        {"name": f"v{number}", "hostPath": {"path": path}} for number, path in enumerate(mounts)
    ]
    container = {
        "name": "stranger",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python", "/work/zoo/stranger.py", *arguments],
        "volumeMounts": [
            {"name": f"v{number}", "mountPath": mount}
            for number, mount in enumerate(mounts.values())
        ],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stranger"},
        "spec": {"restartPolicy": "Never", "containers": [container], "volumes": volumes},
    }
    kubectl("apply", "-f", "-", namespace=namespace, text=json.dumps(pod))
    phase = ("get", "pod", "stranger", "-o", "jsonpath={.status.phase}")
    ended = ("Succeeded", "Failed")
    how = until("the stranger", lambda: (p := kubectl(*phase, namespace=namespace)) in ended and p)
    said = kubectl("logs", "stranger", namespace=namespace)
    assert how == "Succeeded", said
    return json.loads(said.splitlines()[-1])


def test_strangers_get_nothing_and_nothing_is_in_the_clear(shoal, namespace):
    name = "closed"
    flags = planted_job(shoal, name)
    job = Watched(name, namespace)
    with Capture() as capture:
        said = shoal("train", *flags, "--detach")
        assert said.returncode == 0, said.stderr
        until("it trains", lambda: job.training_with(1))

        # A pod has its own certificate, which only its user's group may read, and no other.
        worker = process_of("shoal.worker", namespace, 0)
        folder = Path(f"/proc/{worker}/root{POD_FOLDER}")
        found = {path.name for path in folder.iterdir() if not path.name.startswith("..")}
        assert found == {AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE}
        for file in found:
            status = (folder / file).stat()
            assert (stat.S_IMODE(status.st_mode), status.st_gid) == (0o440, USER)

        # The pods that the API server holds are as `restricted` wants them, but for the folders of
        # this machine that the tests lend them.
        for pod in json.loads(kubectl("get", "pods", "-o", "json", namespace=namespace))["items"]:
            assert set(violations(pod["spec"])) <= {"volume hostPath"}, pod["metadata"]["name"]

        # What writes to volumes alone can write nowhere else, but to memory for temporary files.
        for module in ("shoal.master.in_cluster", "shoal.ps"):
            root = Path(f"/proc/{process_of(module, namespace)}/root")
            assert mounted_read_only(root), module
            assert os.access(root / "dev/shm", os.W_OK)
        assert not mounted_read_only(Path(f"/proc/{worker}/root"))

        # Calls of strangers, of another job, and of a worker that does what a worker may not.
        made = certificates(name, namespace)
        config, _ = job.handle.configuration()
        (files,) = (each for secret, each in made.items() if f"{name}-worker-" in secret)
        identities = shoal.path / "identities"
        other = Authority.made(config.job_id).issue(WORKER)
        for who, content in (
            ("worker-0", (files["ca.crt"], files["0.crt"], files["0.key"])),
            ("another-worker-0", (other.authority, other.certificate, other.key)),
        ):
            (identities / who).mkdir(parents=True)
            for file, text in zip(
                (AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE), content, strict=True
            ):
                (identities / who / file).write_bytes(text)
        answers = stranger_says(shoal, namespace, name, namespace, config.token, config.job_id)
        away, forbidden = "PeerUnavailableError", "NOT_PERMITTED"
        for who in ("", "another-worker-0"):
            assert set(answers[who].values()) == {away}, answers
        assert answers["worker-0"] == {
            "pull": "BAD_REQUEST",  # let in: it is no frame
            "shut down": forbidden,
            "stop": forbidden,
            "look": "answered",
        }
        assert answers["for another"] == forbidden
        assert answers["health"] == {"shut down": forbidden, "stop": forbidden}
        log = shoal("logs", name, "--namespace", namespace).stdout
        assert f"refused StopJob of worker-0 of job {config.job_id}" in log

        # A key is in its Secret and nowhere else.
        kinds = "configmaps,pods,jobs,services,leases,poddisruptionbudgets,events"
        shown = [
            kubectl("get", kinds, "-o", "yaml", namespace=namespace),
            kubectl("describe", f"{kinds},secrets", namespace=namespace),
            *(kubectl("logs", pod.metadata.name, namespace=namespace) for pod in job.handle.pods()),
            said.stdout + said.stderr,
        ]
        keys = [each for files in made.values() for key, each in files.items() if ".key" in key]
        assert len(keys) == 1 + 1 + LEAST_SERVERS + LEAST_WORKERS
        for text in shown:
            assert "PRIVATE KEY" not in text
            assert not any(key.decode().splitlines()[1] in text for key in keys)
            assert not any(base64.b64encode(key).decode()[60:120] in text for key in keys)
        (files,) = (each for secret, each in made.items() if f"{name}-client-" in secret)
        assert {"ca.crt", "0.crt", "0.key"} == set(files)

        addresses = addresses_of(namespace, name)
        end(shoal, job)
    assert readable(shoal, capture, addresses) == set()
    deleted = shoal("delete", name, "--namespace", namespace)
    assert deleted.returncode == 0, deleted.stderr
    until("its Secrets are gone", lambda: not certificates(name, namespace))


def test_without_encryption_the_same_capture_holds_ids_and_rows(shoal, namespace):
    """So what the test above does not find would have been found."""
    flags = planted_job(shoal, "open")
    job = Watched("open", namespace)
    with Capture() as capture:
        said = shoal("train", *flags, "--tls=never", "--detach")
        assert (said.returncode, "warning: --tls=never" in said.stderr) == (0, True), said.stderr
        until("it trains", lambda: job.training_with(1))
        assert certificates("open", namespace) == {}
        addresses = addresses_of(namespace, "open")
        end(shoal, job)
    assert readable(shoal, capture, addresses) == {"an id", "a row", "a table's name"}
