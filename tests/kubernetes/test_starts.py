"""What cannot start, and what a Job's conditions and Events say of a job that failed."""

import json

from tests.kubernetes.conftest import kubectl
from tests.kubernetes.image import IMAGE
from tests.kubernetes.jobs import Watched, following, left_of, until

MISSING = "127.0.0.1:9/none:1"


def test_a_worker_image_that_is_missing_ends_the_job(shoal, namespace):
    flags = shoal.movielens(
        "imageless",
        image=MISSING,
        server_image=IMAGE,
        start_timeout="3",
        workers="1",
    )
    done = shoal("train", *flags)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stdout + done.stderr
    assert "worker-0 waits: ErrImagePull" in done.stdout
    assert "worker-0 could not start within 3 s (--start-timeout)" in done.stderr
    assert MISSING in done.stderr
    until("nothing is left", lambda: left_of("imageless", namespace) == "")


def test_a_master_without_rights_says_which_and_does_not_crash_for_ever(shoal, namespace):
    flags = shoal.movielens("rightless", service_account="default")
    with following(shoal, *flags) as (train, said):
        until("it is told", lambda: "may not get leases" in said())
        assert "Role shoal of deploy/base" in said()
        # Meanwhile the same is said to whoever does not follow it.
        until("a pause", lambda: train.poll() is not None or "crashing" in jobs(shoal, namespace))
        assert train.wait(300) == 1, said()
    assert "the master ended with exit code 2" in said()
    assert "left in the cluster" not in said()
    until("nothing is left", lambda: left_of("rightless", namespace) == "")


def jobs(shoal, namespace):
    return shoal("jobs", "--namespace", namespace).stdout


def test_the_job_object_of_a_failed_job_has_failed_and_keeps_its_log(shoal, namespace):
    # Nobody's folder is taken, which a master finds out without TensorFlow.
    folder = shoal.path / "job"
    folder.mkdir(mode=0o777)
    (folder / "thesis.txt").touch()
    done = shoal("train", *shoal.movielens("refused", job_dir="/work/job"), "--detach")
    assert done.returncode == 0, done.stderr
    condition = ("wait", "--for=condition=failed", "job/refused-master", "--timeout=300s")
    kubectl(*condition, namespace=namespace)
    assert Watched("refused", namespace).handle.master_pod().status.phase == "Failed"
    assert "not the folder of a job" in shoal("logs", "refused", "--namespace", namespace).stdout
    told = shoal("status", "refused", "--namespace", namespace)
    assert "not the folder of a job" in told.stdout + told.stderr
    assert "failed" in jobs(shoal, namespace)
    listed = kubectl("get", "events", "-o", "json", namespace=namespace)
    (event,) = (
        each
        for each in json.loads(listed)["items"]
        if each["source"].get("component") == "shoal"
        and each["involvedObject"]["name"] == "refused-master"
    )
    assert (event["type"], event["reason"]) == ("Warning", "Failed")
    assert "not the folder of a job" in event["message"]
    assert shoal("delete", "refused", "--namespace", namespace).returncode == 0
    until("nothing is left", lambda: left_of("refused", namespace) == "")
