"""The master that has the job's Lease: one at a time, and the next one after its end."""

import json
import shutil

from tests.jobs.conftest import movielens as movielens
from tests.kubernetes.conftest import kubectl
from tests.kubernetes.jobs import Watched, held_job, kill, until

NAME = "leased"


def test_the_next_master_takes_the_lease(shoal, movielens, namespace):
    shutil.copy(movielens / "validation.parquet", shoal.path / "train.parquet")
    flags, _ = held_job(shoal, NAME)
    done = shoal("train", *flags, "--detach")
    assert done.returncode == 0, done.stderr
    job = Watched(NAME, namespace)

    def lease():
        return json.loads(kubectl("get", "lease", NAME, "-o", "json", namespace=namespace))

    def master():
        pod = job.handle.master_pod()
        return f"{pod.metadata.name}_{pod.metadata.uid}" if pod else ""

    def held_since():
        found = kubectl("get", "lease", NAME, namespace=namespace, check=False)
        return found.returncode == 0 and lease()["spec"]["holderIdentity"] == master()

    until("the master holds the Lease", held_since)
    first = lease()
    (owner,) = first["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Job", f"{NAME}-master")

    # Killed in its pod, it is started again there and goes on renewing its own Lease.
    until("the master answers", job.status)
    kill("shoal.master.in_cluster", namespace)
    until("the master answers again", lambda: job.said("the master was started again"))
    again = lease()
    assert again["spec"]["holderIdentity"] == first["spec"]["holderIdentity"]
    assert again["spec"]["renewTime"] > first["spec"]["renewTime"]

    # Deleted by force, it is followed by another one, whose the Lease is then.
    pod = first["spec"]["holderIdentity"].partition("_")[0]
    kubectl("delete", "pod", pod, "--force", "--grace-period=0", namespace=namespace)
    until("another master", lambda: job.said("the master was started again", times=2))
    spec = lease()["spec"]
    assert spec["holderIdentity"] == master() != first["spec"]["holderIdentity"]
    assert spec["leaseTransitions"] == 1
    assert shoal("delete", NAME, "--namespace", namespace).returncode == 0
    until(
        "the Lease goes with the Job",
        lambda: not kubectl("get", "leases", "-o", "name", namespace=namespace),
    )
