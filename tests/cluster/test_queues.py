"""What Kueue and Volcano find in the objects of a job that is given to them."""

from shoal.cluster import manifests
from shoal.cluster.queues import KUEUE_QUEUE_LABEL, VOLCANO_MIN_MEMBER, VOLCANO_QUEUE
from tests.cluster.test_manifests import config, pod

GANG = {"servers": "2", "workers": "3", "volcano": "3"}


def master(templates=None, **changes):
    return manifests.master_job(config(**changes), templates or {}, grpc_probes=True)


def test_without_the_flags_the_objects_say_nothing_to_them():
    for metadata in (master()["metadata"], pod()["metadata"], pod("ps")["metadata"]):
        said = metadata["labels"] | metadata.get("annotations", {})
        assert not [key for key in said if "kueue" in key or "volcano" in key]
    assert "schedulerName" not in pod()["spec"]


def test_kueue_queues_the_masters_job_and_each_pod_of_a_server_or_worker():
    job = master(kueue_queue="ads")
    assert job["metadata"]["labels"][KUEUE_QUEUE_LABEL] == "ads"
    # The pod of a Job that is queued is not queued again.
    assert KUEUE_QUEUE_LABEL not in job["spec"]["template"]["metadata"]["labels"]
    for role in ("ps", "worker"):
        assert pod(role, kueue_queue="ads")["metadata"]["labels"][KUEUE_QUEUE_LABEL] == "ads"
        # A group has a fixed size, which a job has not.
        assert "pod-group" not in str(pod(role, kueue_queue="ads")["metadata"])


def test_volcano_places_servers_and_workers_and_not_the_master_who_makes_them():
    job = master(**GANG)
    assert job["metadata"]["annotations"] == {VOLCANO_MIN_MEMBER: "3"}
    assert "schedulerName" not in job["spec"]["template"]["spec"]
    for role in ("ps", "worker"):
        made = pod(role, **GANG)
        assert made["spec"]["schedulerName"] == "volcano"
        assert VOLCANO_QUEUE not in made["metadata"]["annotations"]
        queued = pod(role, **GANG | {"volcano": "ads:3"})
        assert queued["metadata"]["annotations"][VOLCANO_QUEUE] == "ads"


def test_volcano_finds_one_group_and_its_size_by_the_owners_of_the_pods():
    owners = [pod(role, **GANG)["metadata"]["ownerReferences"] for role in ("ps", "worker")]
    # Its PodGroup is named by the controller's uid; the annotation is read from a Job among them.
    assert {each["uid"] for found in owners for each in found if each.get("controller")} == {"43"}
    job = master(**GANG)
    for found in owners:
        (owner,) = (each for each in found if each["kind"] == "Job")
        assert owner["name"] == job["metadata"]["name"]


def test_the_flags_override_a_template():
    template = {"metadata": {"labels": {KUEUE_QUEUE_LABEL: "x"}}, "spec": {"schedulerName": "y"}}
    made = pod(templates={"worker": template}, **GANG, kueue_queue="ads")
    assert made["metadata"]["labels"][KUEUE_QUEUE_LABEL] == "ads"
    assert made["spec"]["schedulerName"] == "volcano"
