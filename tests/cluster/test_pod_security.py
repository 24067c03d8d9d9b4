"""Pod Security `restricted` admits every pod of a job; images and network fit to that."""

import re
from pathlib import Path

import pytest
import yaml

from shoal.cluster import manifests
from shoal.cluster.pod_security import HOME, USER
from shoal.cluster.ports import HEALTH_PORT, PORTS
from shoal.config.job import JobConfig
from shoal.proto.identity import POD_FOLDER

DEPLOY = Path(__file__).parents[2] / "deploy"

VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir"),
    *("ephemeral", "persistentVolumeClaim", "projected", "secret"),
}

JOBS = {
    "alone": {},
    "on a volume": {"volume": "pvc=jobs,mount=/jobs", "job_dir": "/jobs/1", "num_ps": 4},
    "with secrets": {"env_from_secret": "clicks", "volume": "secret=keys,mount=/keys"},
    "elsewhere": {"job_dir": "/var/jobs/1", "volume": "emptyDir=,mount=/tmp"},
}


def violations(spec):
    """The rules of `restricted` that a pod breaks, in words: those of Kubernetes 1.30."""
    pod = spec.get("securityContext", {})
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    found += [f"sysctl {each['name']}" for each in pod.get("sysctls", ())]
    for volume in spec.get("volumes", ()):
        found += [f"volume {kind}" for kind in volume.keys() - {"name"} - VOLUMES]
    for container in [*spec["containers"], *spec.get("initContainers", ())]:
        own = pod | container.get("securityContext", {})
        capabilities = own.get("capabilities", {})
        wrong = {
            "privileged": own.get("privileged", False),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation", True),
            "capabilities": "ALL" not in capabilities.get("drop", ())
            or not set(capabilities.get("add", ())) <= {"NET_BIND_SERVICE"},
            "runAsNonRoot": not own.get("runAsNonRoot", False),
            "runAsUser": own.get("runAsUser", 1) == 0,
            "seccompProfile": own.get("seccompProfile", {}).get("type")
            not in ("RuntimeDefault", "Localhost"),
            "procMount": own.get("procMount", "Default") != "Default",
            "hostPort": any("hostPort" in port for port in container.get("ports", ())),
        }
        found += [rule for rule, broken in wrong.items() if broken]
    return found


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
    reached, by_all = {}, {}
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
    assert reached == {
        called: {(role, port) for role in roles for port in PORTS[called].values()}
        for called, roles in may_call.items()
    }
    # The kubelet has no certificate; nothing else is without.
    assert by_all == {"master": {HEALTH_PORT}, "ps": {HEALTH_PORT}, "worker": set()}
    roles = {pod: manifests.labels("job", pod)[manifests.ROLE_LABEL] for pod in reached}
    assert set(roles.values()) == set(reached)
