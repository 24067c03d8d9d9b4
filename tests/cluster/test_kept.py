"""`shoal audit` and `shoal train --resume` on the folder that a job on Kubernetes has here."""

import json

import pytest
from click.testing import CliRunner

from shoal.base.disk.job_folder import JobFolder
from shoal.cli.main import main
from shoal.config.job import JobConfig

NOWHERE = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "none", "cluster": {"server": "https://127.0.0.1:9"}}],
    "users": [{"name": "nobody", "user": {}}],
    "contexts": [{"name": "here", "context": {"cluster": "none", "user": "nobody"}}],
    "current-context": "here",
}


def shoal(*words):
    done = CliRunner().invoke(main, [str(word) for word in words], prog_name="shoal")
    assert "Traceback" not in done.output
    return done


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Of a job that was followed, and failed."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(NOWHERE))
    monkeypatch.setattr(
        "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig)
    )
    made = JobFolder(tmp_path / "job")
    made.path.mkdir()
    write(made, volume="pvc=jobs,mount=/jobs", job_dir="/jobs/job")
    made.templates.write_text("{}")
    made.result.write_text(json.dumps({"job_name": "job", "command": "train", "state": "failed"}))
    return made


def write(folder, **changes):
    given = {"model_def": "m.custom_model", "training_data": "/t.csv", "image": "i"}
    config = JobConfig(**given | {"job_name": "job"} | changes).resolved()
    folder.config.write_text(config.to_json())


@pytest.mark.parametrize(("clean", "code"), [(True, 0), (False, 1)])
def test_the_audit_that_was_kept_is_printed(folder, clean, code):
    kept = {"clean": clean, "text": "job job: failed", "report": {"job": "job"}}
    folder.audit.write_text(json.dumps(kept))
    done = shoal("audit", folder.path)
    assert (done.exit_code, done.output) == (code, "job job: failed\n")
    assert json.loads(shoal("audit", folder.path, "--json").output) == {"job": "job"}


def test_a_job_whose_journal_is_gone_is_not_resumed(folder):
    write(folder)
    done = shoal("train", "--resume", folder.path)
    assert done.exit_code == 2
    assert "the journal of job was in its master's pod" in done.stderr


def test_a_job_that_has_succeeded_is_not_resumed(folder):
    state = json.loads(folder.result.read_text()) | {"state": "succeeded"}
    folder.result.write_text(json.dumps(state))
    done = shoal("train", "--resume", folder.path)
    assert (done.exit_code, "nothing is left to do" in done.stderr) == (2, True), done.stderr


def test_an_image_is_no_change_of_a_job_on_this_machine(tmp_path):
    done = shoal("train", "--resume", tmp_path, "--image", "new:2")
    assert (done.exit_code, "--image is for jobs on Kubernetes" in done.stderr) == (2, True)
    done = shoal("train", "--resume", tmp_path, "--epochs", "2")
    assert (done.exit_code, "--epochs cannot be given" in done.stderr) == (2, True)
