"""What the objects of a job say, without a cluster."""

import json
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from shoal.base.modules import by_value
from shoal.cli.main import main
from shoal.cluster import certificates, given_model, manifests
from shoal.cluster.data_loss import loss_warnings
from shoal.cluster.manifests import SAFE_TO_EVICT
from shoal.cluster.templates import read_templates
from shoal.config.groups.quantities import memory_steps
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.proto.identity import POD_FOLDER
from shoal.security.authority import Authority, issued

PRIORITIES = Path(__file__).parents[2] / "deploy" / "base" / "priorities.yaml"


def config(**changes):
    given = {
        "model_def": "deepfm.custom_model",
        "training_data": "/data/train.csv",
        "job_name": "job",
        "image": "shoal:1",
    }
    return JobConfig(**given | changes).resolved()


def pod(role="worker", index=0, templates=None, growth=0, wanted=None, authority="beef", **changes):
    return manifests.process_pod(
        config(**changes),
        templates or {},
        role,
        index,
        0,
        namespace="here",
        owners=manifests.owners_of_pod("job", "42", "43"),
        grpc_probes=changes.pop("grpc_probes", False),
        workers=4,
        servers=wanted or config(**changes).num_servers,
        authority=authority,
        growth=growth,
    )


def container(made):
    return made["spec"]["containers"][0]


def test_paths_are_those_in_the_pods():
    made = config(volume="pvc=data,mount=/data,readOnly", output="/models/1")
    assert (made.model_zoo, made.job_dir) == ("/model_zoo", "/tmp/shoal-jobs/job")
    assert made.training_data == "/data/train.csv"
    with pytest.raises(UserError, match=r"--output: with --image, .* not 'models/1'"):
        config(output="models/1")


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("training_data", "postgresql://reader:hunter2@db/clicks?clicks"),
        ("output", "s3://key:hunter2@bucket/model"),
        ("model_zoo", "https://hunter2@example.com/models"),
        ("checkpoint_dir", "abfs://c@a/jobs?sig=hunter2"),
        ("training_data", "http://example.com/t.csv?X-Amz-Signature=hunter2&x=1"),
    ],
)
def test_a_credential_in_a_url_is_refused_and_not_told(name, url):
    with pytest.raises(
        UserError, match=f"--{name.replace('_', '-')}: .* --env-from-secret"
    ) as error:
        config(**{name: url})
    assert "hunter2" not in str(error.value)
    with pytest.raises(UserError, match="single quotes") as error:
        JobConfig(**{"model_def": "a.b", "training_data": "t.csv", name: url})
    assert "hunter2" not in str(error.value)


def test_a_credential_in_a_template_is_refused_and_not_told(tmp_path):
    path = tmp_path / "pods.yaml"
    value = "http://reader:hunter2@proxy"
    env = [{"name": "HTTP_PROXY", "value": value}]
    path.write_text(yaml.safe_dump({"worker": {"spec": {"containers": [{"env": env}]}}}))
    with pytest.raises(UserError, match=r"worker: http.* --env-from-secret") as error:
        read_templates(str(path))
    assert "hunter2" not in str(error.value)


def test_variables_of_every_pod_come_from_secrets():
    template = {
        "worker": {"spec": {"containers": [{"envFrom": [{"configMapRef": {"name": "c"}}]}]}}
    }
    given = {"env_from_secret": "clicks, store.keys", "templates": template}
    wanted = [{"secretRef": {"name": name}} for name in ("clicks", "store.keys")]
    assert container(pod("ps", **given))["envFrom"] == wanted
    assert container(pod("worker", **given))["envFrom"][:2] == wanted
    assert {"configMapRef": {"name": "c"}} in container(pod("worker", **given))["envFrom"]
    job = manifests.master_job(config(env_from_secret="clicks"), {}, grpc_probes=False)
    assert container(job["spec"]["template"])["envFrom"] == wanted[:1]
    with pytest.raises(UserError, match="--env-from-secret: 'A_B' is not the name"):
        config(env_from_secret="clicks,A_B")


def test_a_url_without_a_password_is_taken():
    for url in (
        "postgresql://reader@db:5432/c?t",
        "gs://b/t.csv",
        "http://e.com:80/t.csv?a=b@c",
        "postgresql://reader:${PW}@db/c#t",
        "https://${WHO}:${PW}@e.com/t.csv?sig=${SIG}&b=1",
    ):
        assert config(training_data=url).training_data == url


def test_a_model_by_value_is_mounted_in_workers_only(tmp_path):
    given = {"model_def": by_value.MODEL_DEF, "model_zoo": given_model.FOLDER}

    def mounts(made):
        return {each["mountPath"]: each for each in container(made)["volumeMounts"]}

    assert mounts(pod("worker", **given))[given_model.FOLDER]["readOnly"]
    assert {"name": "job-model"} in [
        each.get("configMap") for each in pod("worker", **given)["spec"]["volumes"]
    ]
    assert given_model.FOLDER not in mounts(pod("ps", **given))
    assert given_model.FOLDER not in mounts(pod("worker"))

    files = {by_value.MODULE: b"a = 1", by_value.PICKLE: bytes(range(256))}
    for name, data in files.items():
        tmp_path.joinpath(name).write_bytes(data)
    made = given_model.config_map("job", tmp_path, {"a": "b"})
    given_model.write(made["binaryData"], tmp_path / "again")
    assert {p.name: p.read_bytes() for p in (tmp_path / "again").iterdir()} == files
    tmp_path.joinpath(by_value.MODEL).write_bytes(bytes(given_model.LARGEST_BYTES))
    with pytest.raises(UserError, match=r"^model: .* a cluster takes 700,000\. Give a function"):
        given_model.config_map("job", tmp_path, {})
    with pytest.raises(UserError, match="start it from the program that has the model"):
        given_model.config_map("job", tmp_path / "nothing", {})


def test_limits_of_time_are_those_of_the_job_object():
    def spec(**changes):
        return manifests.master_job(config(**changes), {}, grpc_probes=False)["spec"]

    assert not {"activeDeadlineSeconds", "ttlSecondsAfterFinished"} & set(spec())
    made = spec(active_deadline_seconds=600, ttl_seconds_after_finished=0)
    # The master sets it as it begins: Kubernetes counts while it waits for room, too.
    assert "activeDeadlineSeconds" not in made
    assert made["ttlSecondsAfterFinished"] == 0


def test_checkpoints_need_a_place_that_the_pods_share():
    alone = config()
    assert (alone.checkpoint_dir, alone.checkpoint_seconds) == ("", 0.0)
    with pytest.raises(UserError, match="--checkpoint-steps: where no --volume holds"):
        config(checkpoint_steps=5)
    shared = config(volume="pvc=jobs,mount=/jobs", job_dir="/jobs/1")
    assert (shared.checkpoint_dir, shared.checkpoint_seconds) == ("/jobs/1/checkpoints", 300.0)
    assert config(checkpoint_dir="gs://bucket/1").checkpoint_dir == "gs://bucket/1"
    # What is written on these is seen by nobody else.
    for kind in ("emptyDir=", "secret=jobs", "pvc=jobs,readOnly"):
        assert config(volume=f"{kind},mount=/jobs", job_dir="/jobs/1").checkpoint_dir == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ["the job begins anew", "its pods share no folder"]),
        ({"checkpoint_dir": "gs://b/1"}, ["the job begins anew", "no log of updates is kept"]),
        ({"checkpoint_dir": "gs://b/1", "servers": "2"}, ["the job begins anew"]),
        (
            {"checkpoint_dir": "/here", "servers": "2"},
            ["the job begins anew", "cannot find its checkpoint"],
        ),
        ({"volume": "pvc=jobs,mount=/jobs", "job_dir": "/jobs/1"}, []),
        (
            {"volume": "pvc=jobs,mount=/jobs", "job_dir": "/jobs/1", "checkpoint_seconds": 0.0},
            ["--checkpoint-seconds"],
        ),
        ({"volume": "emptyDir=,mount=/jobs", "job_dir": "/jobs/1"}, ["anew", "no folder"]),
        ({"volume": "pvc=jobs,mount=/jobs", "job_dir": "/jobs/1", "output": "/jobs/2"}, []),
        (
            {"volume": "pvc=jobs,mount=/jobs", "job_dir": "/jobs/1", "output": "/elsewhere"},
            ["--output is neither a URL nor"],
        ),
    ],
)
def test_what_a_job_would_lose_is_said(changes, said):
    found = loss_warnings(config(**changes))
    assert len(found) == len(said)
    assert all(text.startswith("warning: ") for text in found)
    assert all(part in text for part, text in zip(said, found, strict=True)), found


def test_a_server_gets_the_time_for_a_checkpoint():
    command = container(pod("ps"))["command"]
    assert command[command.index("--grace") + 1] == "120"
    assert pod("ps")["spec"]["terminationGracePeriodSeconds"] == 120
    patient = {"ps": {"spec": {"terminationGracePeriodSeconds": 900}}}
    made = pod("ps", templates=patient)
    assert made["spec"]["terminationGracePeriodSeconds"] == 900
    command = container(made)["command"]
    assert command[command.index("--grace") + 1] == "900"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"job_name": "Job"}, "--job-name: on Kubernetes a name begins"),
        ({"job_name": "j" * 41}, "--job-name: on Kubernetes"),
        ({"worker_resources": "cpu"}, "--worker-resources: 'cpu' is not"),
        ({"ps_resources": "memory=1G:2GB"}, "--ps-resources: memory=1G:2GB is not"),
        ({"volume": "pvc=data"}, "--volume: 'pvc=data' must have"),
        ({"volume": "disk=data,mount=/x"}, "--volume: 'disk=data,mount=/x' must have"),
        ({"priority": "worker=1.5"}, "--priority: worker must have"),
        ({"priority": "ps=0.5"}, "--priority: ps must have"),
        ({"oom_memory_factor": 0.5}, "--oom-memory-factor must be"),
        ({"kueue_queue": "Team A"}, "--kueue-queue: 'Team A' is not the name"),
        ({"kueue_queue": "q" * 64}, "--kueue-queue: 'q+' is not the name"),
        ({"volcano": "-1"}, "--volcano must be"),
        (
            {"volcano": "6", "servers": "2", "workers": "3"},
            r"--volcano must be at most --servers plus --workers \(5\), not 6",
        ),
        ({"volcano": "ads"}, "--volcano must be a number, or a queue and a number"),
        ({"volcano": "a/b:1"}, "--volcano: 'a/b' is not"),
    ],
)
def test_a_flag_that_cannot_be_used_is_named(changes, message):
    with pytest.raises(UserError, match=message):
        config(**changes)


def test_a_server_has_a_name_and_a_probe_and_no_rights():
    made = pod("ps", 1)
    assert made["metadata"]["name"] == made["spec"]["hostname"] == "job-ps-1"
    controller, job = made["metadata"]["ownerReferences"]
    # Without one, `kubectl drain` refuses; the Job would let go of it.
    assert (controller["kind"], controller["controller"], controller["uid"]) == (
        "ConfigMap",
        True,
        "43",
    )
    assert (job["kind"], job["name"], job["uid"]) == ("Job", "job-master", "42")
    assert "controller" not in job
    command = container(made)["command"]
    assert command[command.index("--advertise") + 1] == "job-ps-1.job.here.svc:7100"
    assert command[command.index("--master") + 1] == "job-master.job.here.svc:7000"
    assert container(made)["readinessProbe"]["tcpSocket"] == {"port": 7200}
    assert made["spec"]["automountServiceAccountToken"] is False


def evictable(made):
    return made["metadata"]["annotations"][SAFE_TO_EVICT]


def test_the_autoscaler_may_give_up_nodes_whose_pods_hold_nothing_alone():
    volume = {"volume": "pvc=jobs,mount=/jobs", "job_dir": "/jobs/1"}

    def master(**changes):
        made = manifests.master_job(config(**changes), {}, grpc_probes=False)
        return evictable(made["spec"]["template"])

    # A worker holds nothing; what the others hold has to be elsewhere too.
    assert [evictable(pod()), evictable(pod("ps")), master()] == ["true", "false", "false"]
    assert [evictable(pod("ps", **volume)), master(**volume)] == ["true", "true"]
    kept = {"ps": {"metadata": {"annotations": {SAFE_TO_EVICT: "false"}}}}
    assert evictable(pod("ps", templates=kept, **volume)) == "false"


def apart(made):
    """What a server's pod would rather not share a node with: (weight, selector)."""
    wishes = made["spec"]["affinity"]["podAntiAffinity"]
    (kind,) = wishes
    assert kind == "preferredDuringSchedulingIgnoredDuringExecution"
    return [(w["weight"], w["podAffinityTerm"]["labelSelector"]) for w in wishes[kind]]


def test_a_server_would_rather_be_alone_and_not_with_the_keeper_of_its_log():
    volume = {"volume": "pvc=jobs,mount=/jobs", "job_dir": "/jobs/1"}
    others = {"shoal.dev/job": "job", "shoal.dev/role": "ps"}
    assert apart(pod("ps", servers="2")) == [(50, {"matchLabels": others})]
    _, (weight, selector) = apart(pod("ps", 3, servers="4", **volume))
    assert (weight, selector["matchLabels"]) == (100, others)
    (among,) = selector["matchExpressions"]
    assert (among["key"], among["operator"], among["values"]) == (
        "shoal.dev/index",
        "In",
        ["0", "2"],
    )
    # The servers that keep logs now count: one that came later has its log at one of them.
    for index, keepers in ((3, ["2", "4"]), (6, ["1"])):
        _, (_, selector) = apart(pod("ps", index, servers="4", wanted=5, **volume))
        assert selector["matchExpressions"][0]["values"] == keepers
    in_files = apart(pod("ps", 3, servers="4", durability="file", **volume))
    assert in_files == [(50, {"matchLabels": others})]
    assert "affinity" not in pod()["spec"]
    theirs = {"ps": {"spec": {"affinity": {"nodeAffinity": {"x": 1}}}}}
    for _ in range(2):  # the template is not changed by its use
        made = pod("ps", templates=theirs)
        assert (set(made["spec"]["affinity"]), len(apart(made))) == (
            {"nodeAffinity", "podAntiAffinity"},
            1,
        )


def test_low_priority_is_below_that_of_pods_without_one():
    path = Path(__file__).parents[2] / "deploy" / "base" / "priorities.yaml"
    values = {
        each["metadata"]["name"]: each["value"] for each in yaml.safe_load_all(path.read_text())
    }
    # Below -10 the cluster autoscaler would make no nodes for them.
    assert -10 <= values["shoal-low"] < 0 < values["shoal-high"]


def test_the_first_share_of_the_workers_has_high_priority():
    classes = [pod(index=i, priority="worker=0.5")["spec"]["priorityClassName"] for i in range(4)]
    assert classes == ["shoal-high", "shoal-high", "shoal-low", "shoal-low"]
    assert pod(priority="worker=gold")["spec"]["priorityClassName"] == "gold"
    assert "priorityClassName" not in pod()["spec"]


def test_memory_grows_up_to_four_times():
    changes = {
        "worker_resources": "cpu=1,memory=1Gi:2G",
        "oom_memory_factor": 1.5,
    }
    steps = memory_steps(1.5)
    assert pod(growth=1, **changes)["metadata"]["labels"]["shoal.dev/memory-growth"] == "1"
    sizes = [container(pod(growth=n, **changes))["resources"] for n in (0, 1, steps)]
    assert [size["requests"]["memory"] for size in sizes] == ["1Gi", "1536Mi", "4096Mi"]
    assert [size["limits"]["memory"] for size in sizes] == ["2G", "2862Mi", "7630Mi"]
    assert memory_steps(1.0) == 0


def test_roles_have_their_images_and_resources():
    changes = {"server_image": "servers:1", "worker_resources": "cpu=1,gpu=1"}
    assert container(pod("ps", **changes))["image"] == "servers:1"
    worker = container(pod(**changes))
    assert worker["image"] == "shoal:1"
    assert worker["resources"]["requests"] == {"cpu": "1", "nvidia.com/gpu": "1"}
    assert worker["resources"]["limits"] == {"nvidia.com/gpu": "1"}


def test_a_template_stands_under_what_shoal_sets(tmp_path):
    path = tmp_path / "template.yaml"
    path.write_text(
        """
worker:
  metadata: {labels: {team: ads, shoal.dev/job: mine}, annotations: {note: x}}
  spec:
    nodeSelector: {pool: spot}
    hostNetwork: true
    restartPolicy: Always
    containers:
      - name: anything
        image: mine
        imagePullPolicy: Always
        env: [{name: A, value: b}, {name: PYTHONUNBUFFERED, value: ""}]
        volumeMounts: [{name: cache, mountPath: /cache}]
      - {name: sidecar, image: side:1}
    volumes: [{name: cache, emptyDir: {}}]
"""
    )
    templates = read_templates(str(path))
    made = pod(templates=templates)
    spec = made["spec"]
    assert (spec["nodeSelector"], spec["restartPolicy"]) == ({"pool": "spot"}, "Never")
    assert made["metadata"]["labels"]["team"] == "ads"
    assert made["metadata"]["labels"]["shoal.dev/job"] == "job"
    assert made["metadata"]["annotations"] == {"note": "x", SAFE_TO_EVICT: "true"}
    assert [c["name"] for c in spec["containers"]] == ["worker", "sidecar"]
    assert container(made)["image"] == "shoal:1"
    assert container(made)["imagePullPolicy"] == "Always"
    assert {"name": "PYTHONUNBUFFERED", "value": "1"} in container(made)["env"]
    assert {"name": "A", "value": "b"} in container(made)["env"]
    assert {v["name"] for v in spec["volumes"]} == {"config", "shoal-identity", "cache"}
    assert "nodeSelector" not in pod("ps", templates=templates)["spec"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a", "holds no Pod template"),
        ("spec: 3", "is not a Pod template"),
        ("workers: {spec: {}}", "has the key 'workers'"),
        ("a: [", "cannot be read"),
        ("spec: {containers: 3}", "spec.containers is not a list"),
    ],
)
def test_a_template_that_is_none_is_refused(tmp_path, text, message):
    path = tmp_path / "template.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_templates(str(path))


def test_the_yaml_holds_the_objects_of_the_job(tmp_path):
    path = tmp_path / "job.yaml"
    flags = {
        "model-def": "deepfm.custom_model",
        "training-data": "/data/train.csv",
        "image": "shoal:1",
        "job-name": "job",
        "yaml": str(path),
    }
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    done = CliRunner().invoke(main, ["train", *words], prog_name="shoal")
    assert done.exit_code == 0, done.output
    text = path.read_text()
    # As people write it: the configuration line by line, and every label in its place.
    assert '\n    {\n      "' in text
    assert '\n      "job_name": "job",\n' in text
    assert not re.search(r"[&*]id\d|\\n", text)
    objects = {made["kind"]: made for made in yaml.safe_load_all(text)}
    assert set(objects) == {"ConfigMap", "Service", "Job"}
    assert json.loads(objects["ConfigMap"]["data"]["job.json"])["job_name"] == "job"
    assert objects["Service"]["spec"]["clusterIP"] == "None"

    # One file without a key, which may be committed, and applied at any time: what the master would
    # change of its Job as it begins is there already.
    assert "PRIVATE KEY" not in text + done.output
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]
    assert objects["Job"]["spec"]["backoffLimit"] == manifests.MASTER_RESTARTS
    assert "activeDeadlineSeconds" not in objects["Job"]["spec"]


def test_detach_needs_an_image():
    words = ["--model-def", "a.b", "--training-data", "c", "--detach"]
    done = CliRunner().invoke(main, ["train", *words], prog_name="shoal")
    assert (done.exit_code, "need --image" in done.stderr) == (2, True)


def mounted(spec, secrets):
    """File -> content of the folder of a pod's identity, by the Secrets that there are."""
    (volume,) = (each for each in spec["volumes"] if each["name"] == "shoal-identity")
    (mount,) = (
        each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "shoal-identity"
    )
    assert (mount["mountPath"], mount["readOnly"]) == (POD_FOLDER, True)
    assert volume["secret"]["defaultMode"] == 0o440
    data = secrets[volume["secret"]["secretName"]]["stringData"]
    return {item["path"]: data[item["key"]].encode() for item in volume["secret"]["items"]}


def test_each_pod_mounts_its_own_certificate_and_no_other():
    servers, workers = 2, certificates.SECRET_CERTIFICATES + 1
    identities = list(issued(Authority.made("j1"), servers, workers))
    of = certificates.authority_name(identities[0])
    made = certificates.secrets("job", identities, {"labels": {}})
    secrets = {each["metadata"]["name"]: each for each in made}
    assert sorted(secrets) == [
        f"job-client-tls-{of}-0",
        "job-master-tls-0",
        f"job-ps-tls-{of}-0",
        f"job-worker-tls-{of}-0",
        f"job-worker-tls-{of}-1",
    ]
    secrets["job-master-tls-0"]["stringData"]["job-uid"] = "42"
    for each in secrets.values():
        assert sum(map(len, each["stringData"].values())) < 1_000_000
    master = manifests.master_job(config(), {}, grpc_probes=True)["spec"]["template"]["spec"]
    for identity in identities:
        role, index = identity.caller.role, identity.caller.index
        if role == "client":
            continue
        spec = master if role == "master" else pod(role, index, authority=of)["spec"]
        assert mounted(spec, secrets) == {
            "ca.crt": identity.authority,
            "tls.crt": identity.certificate,
            "tls.key": identity.key,
        } | ({"job-uid": b"42"} if role == "master" else {})
        # The first master has to begin in order to make it; other pods wait for theirs.
        (volume,) = (each for each in spec["volumes"] if each["name"] == "shoal-identity")
        assert volume["secret"].get("optional", False) == (role == "master")
        assert "client" not in json.dumps(spec)
    # Nothing that could make a further one.
    assert "authority" not in json.dumps(list(secrets.values()))


def seconds_to_start(container):
    probe = container["startupProbe"]
    return probe["periodSeconds"] * probe["failureThreshold"]


def test_probes_ask_at_a_port_that_answers_nothing_else():
    server = pod("ps")["spec"]["containers"][0]
    assert server["command"][-2:] == ["--health", "0.0.0.0:7200"]
    assert server["livenessProbe"]["tcpSocket"] == {"port": 7200}
    # Whatever a start takes up to its limit, liveness does not count it.
    assert server["startupProbe"]["tcpSocket"] == {"port": 7200}
    assert seconds_to_start(server) == 300
    assert seconds_to_start(container(pod("ps", start_timeout=902.0))) == 905
    assert "initialDelaySeconds" not in server["livenessProbe"]
    open_to_all = pod("ps", tls="never")["spec"]
    assert open_to_all["containers"][0]["livenessProbe"]["tcpSocket"] == {"port": 7100}
    assert "--health" not in open_to_all["containers"][0]["command"]
    assert "shoal-identity" not in {volume["name"] for volume in open_to_all["volumes"]}


def test_only_pods_of_a_job_that_serves_metrics_have_a_port_and_a_token_for_them():
    master = manifests.master_job(config(serve_metrics=True), {}, grpc_probes=True)
    measured = [pod("ps", serve_metrics=True), pod(serve_metrics=True), master["spec"]["template"]]
    for made in measured:
        spec = made["spec"]
        assert spec["containers"][0]["ports"] == [{"name": "metrics", "containerPort": 7300}]
        (volume,) = [each for each in spec["volumes"] if each["name"] == "shoal-metrics"]
        assert volume["secret"]["secretName"] == "shoal-metrics"
        assert volume["secret"]["items"] == [{"key": "token", "path": "token"}]
        mounts = spec["containers"][0]["volumeMounts"]
        (mount,) = [each for each in mounts if each["name"] == "shoal-metrics"]
        assert (mount["mountPath"], mount["readOnly"]) == ("/etc/shoal-metrics", True)
        assert made["metadata"]["annotations"]["prometheus.io/port"] == "7300"
    for made in (pod("ps"), pod()):
        assert "ports" not in container(made)
        assert "metrics" not in json.dumps(made["spec"])
        assert "prometheus.io/scrape" not in made["metadata"]["annotations"]
