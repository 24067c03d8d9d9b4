"""Pod Security `restricted` admits every pod of a job; images and network fit to that."""

import re
from pathlib import Path

import pytest
import yaml

from shoal.cluster import manifests
from shoal.cluster.pod_security import HOME, MEMORY_FOLDER, USER
from shoal.cluster.ports import HEALTH_PORT, METRICS_PORT, PORTS
from shoal.config.job import JobConfig
from shoal.proto.identity import POD_FOLDER
from shoal.proto.wire.transport import arrays_address
from tests.cluster.pod_rules import violations

DEPLOY = Path(__file__).parents[2] / "deploy"

JOBS = {
    "alone": {},
    "on a volume": {"volume": "pvc=jobs,mount=/jobs", "job_dir": "/jobs/1", "servers": "4"},
    "with secrets": {"env_from_secret": "clicks", "volume": "secret=keys,mount=/keys"},
    "elsewhere": {"job_dir": "/var/jobs/1", "volume": "emptyDir=,mount=/tmp"},
}


def specs(templates=None, **changes):
    """The pods of a job, by role."""
    given = {"model_def": "deepfm.custom_model", "training_data": "/t.csv", "job_name": "job"}
    config = JobConfig(**given | {"image": "shoal:1"} | changes).resolved()
    job = manifests.master_job(config, templates or {}, grpc_probes=True)
    made = {"master": job["spec"]["template"]["spec"]}
    for role in ("ps", "worker"):
        pod = manifests.process_pod(
            config,
            templates or {},
            *(role, 0, 0),
            namespace="here",
            owners=[],
            grpc_probes=True,
            workers=1,
            servers=1,
            authority="beef",
        )
        made[role] = pod["spec"]
    return made


@pytest.mark.parametrize("job", JOBS)
def test_every_pod_is_restricted(job):
    for role, spec in specs(**JOBS[job]).items():
        assert violations(spec) == []
        assert spec["securityContext"]["runAsUser"] == USER
        assert spec["automountServiceAccountToken"] is (role == "master")
        (container,) = spec["containers"]
        places = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert len(set(places)) == len(places)
        assert {"name": "HOME", "value": HOME} in container["env"]
        volumes = [volume["name"] for volume in spec["volumes"]]
        assert len(set(volumes)) == len(volumes)
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)


def test_a_jobs_folder_can_be_written_wherever_it_is():
    def places(spec):
        return {mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}

    for spec in specs(job_dir="/var/jobs/1").values():
        assert "/var/jobs/1" in places(spec)
    for spec in specs(job_dir="/jobs/1", volume="pvc=jobs,mount=/jobs").values():
        assert places(spec) == {"/etc/shoal", POD_FOLDER, "/jobs"}
    for spec in specs().values():
        # Nor a folder that is the pod's alone: kubectl drain would refuse the pod.
        assert places(spec) == {"/etc/shoal", POD_FOLDER}
        assert not any("emptyDir" in volume for volume in spec["volumes"])


def read_only(spec):
    """Whether a container's own file system is, where its temporary files then go."""
    (container,) = spec["containers"]
    found = container["securityContext"].get("readOnlyRootFilesystem", False)
    assert ({"name": "TMPDIR", "value": MEMORY_FOLDER} in container["env"]) is found
    return found


KEPT = {"volume": "pvc=jobs,mount=/jobs", "job_dir": "/jobs/1"}
ELSEWHERE = {"checkpoint_dir": "/tmp/checkpoints", "checkpoint_seconds": 60}


@pytest.mark.parametrize(
    ("job", "found"),
    [
        ({}, {"ps"}),
        ({"checkpoint_dir": "gs://bucket/1"}, {"ps"}),
        (KEPT, {"ps", "master"}),
        (KEPT | {"checkpoint_dir": "s3://bucket/1"}, {"ps", "master"}),
        (KEPT | {"durability": "file"}, {"ps", "master"}),
        ({"job_dir": "/var/jobs/1"}, {"ps", "master"}),
        # What pods do not share is on the disk of each.
        (ELSEWHERE, set()),
        (KEPT | ELSEWHERE, set()),
    ],
)
def test_processes_that_write_to_volumes_alone_have_a_read_only_file_system(job, found):
    made = specs(**job)
    assert {role for role, spec in made.items() if read_only(spec)} == found


def test_a_volume_of_a_users_template_counts_and_its_settings_win():
    mounted = {"volumeMounts": [{"name": "mine", "mountPath": "/tmp"}]}
    mine = {"name": "mine", "persistentVolumeClaim": {"claimName": "mine"}}
    template = {"spec": {"containers": [mounted], "volumes": [mine]}}
    assert read_only(specs({"ps": template}, **ELSEWHERE)["ps"])
    writable = {"securityContext": {"readOnlyRootFilesystem": False}}
    mine = {"env": [{"name": "TMPDIR", "value": "/tmp"}]}
    ours = specs({"ps": {"spec": {"containers": [writable | mine]}}})["ps"]
    assert not read_only(ours)
    assert ours["containers"][0]["env"].count({"name": "TMPDIR", "value": "/tmp"}) == 1


@pytest.mark.parametrize(
    ("spec", "rule"),
    [
        ({"hostNetwork": True}, "hostNetwork"),
        ({"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}, "volume hostPath"),
        ({"securityContext": {"runAsUser": 0}}, "runAsUser"),
        ({"securityContext": {"runAsNonRoot": False}}, "runAsNonRoot"),
        ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "seccompProfile"),
        ({"containers": [{"securityContext": {"privileged": True}}]}, "privileged"),
        (
            {"containers": [{"securityContext": {"allowPrivilegeEscalation": True}}]},
            "allowPrivilegeEscalation",
        ),
        ({"containers": [{"securityContext": {"capabilities": {}}}]}, "capabilities"),
    ],
)
def test_a_users_template_may_ask_for_more_and_then_it_is_not_restricted(spec, rule):
    template = {"spec": spec}
    assert rule in violations(specs({"worker": template})["worker"])


def test_folders_and_home_of_a_users_template_stay():
    mounts = [{"name": "mine", "mountPath": "/tmp"}, {"name": "mine", "mountPath": f"{HOME}/"}]
    env = [{"name": "HOME", "value": "/elsewhere"}]
    ours = {"volumeMounts": mounts, "env": env}
    template = {"spec": {"containers": [ours], "volumes": [{"name": "mine", "emptyDir": {}}]}}
    spec = specs({"worker": template})["worker"]
    assert [volume["name"] for volume in spec["volumes"]] == ["config", "shoal-identity", "mine"]
    assert [each for each in spec["containers"][0]["env"] if each["name"] == "HOME"] == env


def test_the_image_has_that_user_and_no_compiler():
    stages = re.split(r"^FROM ", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    last = stages[-1]
    assert f"\nUSER {USER}\n" in last
    assert f"--uid {USER} " in last
    assert not re.search(r"gcc|apt-get|-dev\b", last)
    assert "gcc" in stages[1]  # where it is to be found if it is there


def test_only_who_calls_a_role_reaches_its_pods():
    policies = yaml.safe_load_all((DEPLOY / "base" / "network.yaml").read_text())
    reached, by_all, of_readers = {}, {}, {}
    for policy in policies:
        spec = policy["spec"]
        assert (policy["kind"], spec["policyTypes"]) == ("NetworkPolicy", ["Ingress"])
        called = spec["podSelector"]["matchLabels"][manifests.ROLE_LABEL]
        callers, open_ports = set(), set()
        for rule in spec["ingress"]:
            numbers = [port["port"] for port in rule["ports"]]
            if "from" not in rule:
                open_ports.update(numbers)
                continue
            if METRICS_PORT in numbers:
                of_readers[called] = (numbers, rule["from"])
                continue
            for source in rule["from"]:
                callers |= {
                    (role, number)
                    for expression in source["podSelector"]["matchExpressions"]
                    for role in expression["values"]
                    for number in numbers
                    if expression["key"] == manifests.ROLE_LABEL
                }
        reached[called], by_all[called] = callers, open_ports
    may_call = {"master": ("ps", "worker"), "ps": ("master", "ps", "worker"), "worker": ()}
    for role in ("master", "ps"):
        ports = PORTS[role]
        assert arrays_address(f"pod:{ports[role]}") == f"pod:{ports[f'{role}-arrays']}"
    assert reached == {
        called: {(role, port) for role in roles for port in PORTS[called].values()}
        for called, roles in may_call.items()
    }
    # The kubelet has no certificate; nothing else is without.
    assert by_all == {"master": {HEALTH_PORT}, "ps": {HEALTH_PORT}, "worker": set()}
    labels = {"matchLabels": {"shoal.dev/reads-metrics": "true"}}
    readers = [{"namespaceSelector": labels}, {"podSelector": labels}]
    assert of_readers == dict.fromkeys(reached, ([METRICS_PORT], readers))
    roles = {pod: manifests.labels("job", pod)[manifests.ROLE_LABEL] for pod in reached}
    assert set(roles.values()) == set(reached)
