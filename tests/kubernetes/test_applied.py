"""A job whose file is applied again and again, while it trains, dies, is scaled and drained."""

import json
import shutil
import subprocess
from functools import partial

from tests.jobs.conftest import movielens as movielens
from tests.kubernetes.conftest import SECONDS, kubectl
from tests.kubernetes.jobs import Watched, held_job, kill, until
from tests.kubernetes.users import user as user

NAME = "applied"
JOB = f"{NAME}-master"


def of_job(path, namespace):
    return kubectl("get", "job", JOB, "-o", f"jsonpath={path}", namespace=namespace)


def labels(namespace):
    found = json.loads(of_job("{.metadata.labels}", namespace))
    return [found.get(f"shoal.dev/{name}") for name in ("state", "records", "time-left")]


def may_go(namespace):
    """How many servers the budget lets go."""
    path = "jsonpath={.status.disruptionsAllowed}"
    return int(kubectl("get", "pdb", NAME, "-o", path, namespace=namespace) or -1)


def complete(namespace):
    return "Complete" in of_job("{.status.conditions[*].type}", namespace)


def test_a_job_is_applied_again_killed_scaled_and_drained(user, movielens, namespace):
    shutil.copy(movielens / "validation.parquet", user.path / "train.parquet")
    flags, hold = held_job(user, NAME, workers="1", checkpoint_steps="4")
    flags[flags.index("--servers") + 1] = "1"
    file = user.path / "job.yaml"
    done = user("train", *flags, "--yaml", str(file))
    assert done.returncode == 0, done.stderr
    assert "PRIVATE KEY" not in file.read_text()

    def apply():
        kubectl("apply", "-f", str(file))

    apply()
    job = Watched(NAME, namespace)
    until("it trains", lambda: job.training_with(1))
    uid = of_job("{.metadata.uid}", namespace)

    # 1. Its file is applied ten times, and its master killed more often than one may be that never
    #    began. Nothing of the file differs from what is there.
    for number in range(1, 11):
        apply()
        if number in (3, 6):
            kill("shoal.master.in_cluster", namespace)
            apply()
            said = partial(job.said, "the master was started again", times=number // 3)
            until("the master is back", said)
    differs = subprocess.run(["kubectl", "diff", "-f", str(file)], capture_output=True, text=True)
    assert differs.returncode == 0, differs.stdout
    job.goes_on()
    assert (of_job("{.metadata.uid}", namespace), complete(namespace)) == (uid, False)
    until("the Job shows it", lambda: labels(namespace)[0] == "training")
    records = labels(namespace)[1]
    assert records.endswith("-of-19633")
    until("it shows more", lambda: labels(namespace)[1] != records)
    columns = "shoal.dev/state,shoal.dev/records,shoal.dev/time-left"
    assert "-of-19633" in kubectl("get", "jobs", "-L", columns, namespace=namespace)

    # 2. Its Job is suspended and resumed, where the cluster knows that (1.21).
    patch = partial(kubectl, "patch", "job", JOB, namespace=namespace)
    patch("--patch", '{"spec": {"suspend": true}}')
    if of_job("{.spec.suspend}", namespace) == "true":
        until("it has no pods", lambda: not job.handle.pods())
        assert labels(namespace)[0] == "suspended"
    patch("--patch", '{"spec": {"suspend": false}}')
    until("it trains on", lambda: job.training_with(1))

    # 3. Its servers become three, then two; the node is drained of them, each time to the end.
    node = kubectl("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
    selector = f"--pod-selector=shoal.dev/job={NAME},shoal.dev/role=ps"
    for servers in (3, 2):
        done = user("scale", NAME, "--servers", str(servers), "--namespace", namespace)
        assert done.returncode == 0, done.stderr
        until(
            f"{servers} servers",
            lambda n=servers: (s := job.status()) and s.servers_alive == s.servers_wanted == n,
        )
        lost = job.times("acknowledged updates")
        until("all of the node may go", lambda n=servers: may_go(namespace) == n)
        try:
            kubectl("drain", node, "--ignore-daemonsets", selector, f"--timeout={SECONDS:.0f}s")
        finally:
            kubectl("uncordon", node)
        until("the servers are back", lambda n=servers: job.servers() == n)
        job.goes_on()
        assert job.times("acknowledged updates") == lost

    # 4. It ends, and shows that. Deleted and applied again, with nothing done in between, it is the
    #    same job, which has ended: it says so again.
    hold.unlink()
    until("its end", lambda: complete(namespace))
    assert labels(namespace) == ["succeeded", "19633-of-19633", None]
    result = job.handle.result()
    assert user("delete", NAME, "--namespace", namespace).returncode == 0
    apply()
    until("its end again", lambda: complete(namespace))
    assert of_job("{.metadata.uid}", namespace) != uid
    assert json.loads(job.handle.result())["ledger"] == json.loads(result)["ledger"]
    assert user("delete", NAME, "--namespace", namespace).returncode == 0
