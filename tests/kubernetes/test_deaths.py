"""Every kind of pod of one job dies, in every way: the job ends right, and all is counted."""

import json
import shutil
import signal

from tests.jobs.conftest import movielens as movielens
from tests.kubernetes.conftest import SECONDS, kubectl
from tests.kubernetes.jobs import (
    Watched,
    following,
    held_job,
    kill,
    left_of,
    process_of,
    result_in,
    until,
)

NAME = "mortal"


def leases(namespace):
    return kubectl("get", "leases", "-o", "name", namespace=namespace)


def test_servers_master_and_worker_die_and_the_job_ends_right(shoal, movielens, namespace):
    shutil.copy(movielens / "validation.parquet", shoal.path / "train.parquet")
    flags, hold = held_job(
        shoal,
        NAME,
        workers="2",
        epochs="3",
        checkpoint_seconds="3600",
        durability="checkpoint",
        relaunch_limit="2",
    )
    job = Watched(NAME, namespace)

    restored = "is back: it has restored"

    with following(shoal, *flags) as (train, said):
        until("two workers train", lambda: train.poll() is not None or job.training_with(2))
        assert train.poll() is None, said()
        # They run with the Role of deploy/base, and user code with no rights at all.
        assert job.handle.master_pod().spec.service_account_name == "shoal"
        others = [*job.handle.pods("ps"), *job.handle.pods("worker")]
        assert len(others) == 4
        assert not any(pod.spec.automount_service_account_token for pod in others)

        # 1. Servers and master are told to end, as by a drained node, and drain: one server when
        #    the other one has had its checkpoint and is gone, as on a slow node.
        servers, master = [f"{NAME}-ps-{each}" for each in (0, 1)], job.handle.master_pod()
        drained = [*servers, master.metadata.name]
        before = {job.uid(pod) for pod in drained}
        first = process_of("shoal.ps", namespace, 0)
        kubectl("delete", "pod", servers[0], drained[2], "--wait=false", namespace=namespace)
        until("ps-0 is gone", lambda: process_of("shoal.ps", namespace, 0) != first)
        kubectl("delete", "pod", servers[1], "--wait=false", namespace=namespace)
        # The old master's pod may still be ending.
        until("all are others", lambda: not before & {job.uid(pod) for pod in drained})
        until("the servers are back", lambda: job.servers() == 2)
        job.goes_on()
        # The client hears of it from the next master.
        until("it is told", lambda: "ps-1 is told to end; first " in said())
        assert not job.said("acknowledged updates"), said()

        # 2. A server's pod is deleted by force. What came after the checkpoint is lost.
        back = job.times(restored)
        kubectl("delete", "pod", f"{NAME}-ps-0", "--force", "--grace-period=0", namespace=namespace)
        until("ps-0 is back", lambda: job.said(restored, back + 1))
        job.goes_on()

        # 3. A server is killed inside of its pod.
        back = job.times(restored)
        kill("shoal.ps", namespace, 1)
        until("ps-1 is back again", lambda: job.said(restored, back + 1))
        job.goes_on()
        until("the loss is told", lambda: job.said("ps-1 has lost"))

        # 4. The master's pod is deleted by force: another one goes on with the same pods.
        pods = {pod.metadata.name: pod.metadata.uid for pod in job.handle.pods()}
        master, holder = job.handle.master_pod().metadata.name, job.lease_holder()
        assert holder == f"{master}_{job.uid(master)}"
        kubectl("delete", "pod", master, "--force", "--grace-period=0", namespace=namespace)
        until("another master", lambda: job.said("the master was started again", times=2))
        job.goes_on()
        now = {pod.metadata.name: pod.metadata.uid for pod in job.handle.pods()}
        another = job.handle.master_pod().metadata.name
        assert another != master
        assert job.lease_holder() == f"{another}_{job.uid(another)}"
        assert {name: now.get(name) for name in pods if name != master} == {
            name: uid for name, uid in pods.items() if name != master
        }

        # 5. A worker is killed inside of its pod.
        kill("shoal.worker", namespace, 0)
        until("the worker is back", lambda: job.said("worker-0 was started again"))
        # The pods are gone, and what those had written that were killed inside is kept.
        for which, wrote in (("worker 0", "worker-0"), ("ps 1", "listening on")):
            words = ("logs", NAME, *which.split(), "--restart", which[-1])
            kept = shoal(*words, "--namespace", namespace)
            assert (kept.returncode, wrote in kept.stdout) == (0, True), kept.stdout + kept.stderr
        audit = shoal("audit", NAME, "--namespace", namespace)
        assert (audit.returncode, "ps-0: " in audit.stdout) == (0, True), audit.stderr
        assert "everything is accounted for" in audit.stdout

        # 6. All of it ends, and the journal is on the volume.
        train.send_signal(signal.SIGINT)
        assert train.wait(SECONDS) == 130, said()
    assert left_of(NAME, namespace) == ""
    until("the Lease goes with the Job", lambda: not leases(namespace))
    stopped = result_in(shoal, NAME)
    hold.unlink()
    resumed = shoal("train", "--resume", f"shoal-jobs/{NAME}", "--workers", "1")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "the job was resumed from checkpoint" in resumed.stdout

    result = result_in(shoal, NAME)
    ledger = result["ledger"]
    assert ledger["total"] == 3 * 19_633
    assert ledger["trained_once"] + ledger["repeated"] == ledger["total"], ledger
    assert stopped["servers"]["deaths"] in (3, 4)
    assert stopped["servers"]["lost_pushes"] > 0
    # The journal was on the volume; what is left of it here is the audit.
    audit = shoal("audit", f"shoal-jobs/{NAME}", "--json")
    assert audit.returncode == 0, audit.stdout
    report = json.loads(audit.stdout)
    assert report["updates"]["lost"] >= stopped["servers"]["lost_pushes"]
    who = {death["who"] for death in report["deaths"]}
    assert who >= {"master", "ps-0", "ps-1", "worker-0", "job"}
    assert left_of(NAME, namespace) == ""
