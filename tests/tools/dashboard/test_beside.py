"""--dashboard: the page that the command serves which runs the job."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading

import pytest

from shoal.base.disk.job_folder import JobFolder
from shoal.client.show.display import Display
from shoal.config.job import JobConfig
from shoal.tools.dashboard import beside
from tests.jobs.running import PATIENCE, RunningJob, arguments_of
from tests.tools.dashboard.dashboards import Page

pytest.importorskip("starlette", reason="the extra shoal[dashboard] is not installed")
pytest.importorskip("uvicorn", reason="the extra shoal[dashboard] is not installed")


class Recorder(Display):
    """Keeps what it is told."""

    def __init__(self):
        super().__init__()
        self.told = []

    def event(self, text):
        self.told.append(text)

    def draw(self, status):
        pass


def job_at(path):
    """The folder and configuration of a job of which nothing runs yet."""
    folder = JobFolder(path)
    folder.logs.mkdir(parents=True)
    config = JobConfig(
        model_def="m.custom_model", job_name="clicks", job_dir=str(path), training_data="x.csv"
    )
    folder.config.write_text(config.to_json())
    (folder.logs / "master.log").write_text("the end\n")
    return folder, config


@pytest.mark.slow
def test_an_open_page_is_told_the_end_before_its_server_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(beside, "LATELY_SECONDS", PATIENCE)
    monkeypatch.setattr(beside, "END_SECONDS", PATIENCE)
    folder, config = job_at(tmp_path / "clicks")
    recorder = Recorder()
    with beside.page_beside(recorder, 0) as display:
        display.__enter__()
        display.started(config, folder)
        page = Page(recorder.told[-1])
        # No master runs, and this is not the end: it is about to be started.
        assert not page.json("/facts")["ended"]
        ended = {"job_name": "clicks", "command": "train", "state": "succeeded", "seconds": 3.0}
        folder.result.write_text(json.dumps(ended))
        leaving = threading.Thread(target=display.__exit__, args=(None, None, None))
        leaving.start()
        page.wait("the end", "/facts", lambda facts: facts["state"] == "succeeded")
        assert page.get("/course").status == 200
        assert page.json("/logs/master.log")["lines"] == ["the end"]
        leaving.join()
        page.assert_ended()
    again = f"shoal dashboard {tmp_path}/clicks shows it again"
    assert recorder.told[-1] == f"the page of the job has ended with it; {again}"


@pytest.mark.slow
def test_nobody_is_waited_for_where_no_page_is_open(tmp_path, monkeypatch):
    monkeypatch.setattr(beside, "END_SECONDS", 1e6)
    folder, config = job_at(tmp_path / "clicks")
    with beside.page_beside(Recorder(), 0) as display, display:
        display.started(config, folder)


def test_a_cluster_that_cannot_be_asked_costs_the_page_and_not_the_job(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    folder, config = job_at(tmp_path / "clicks")
    recorder = Recorder()
    with beside.page_beside(recorder, 0) as display, display:
        display.started(JobConfig(**json.loads(config.to_json()) | {"image": "shoal:1"}), folder)
        display.event("the job goes on")
    assert recorder.told[-2].startswith("warning: --dashboard: the page cannot be served: ")
    assert recorder.told[-1] == "the job goes on"


@pytest.mark.job
def test_a_job_has_its_page_until_it_is_interrupted_and_again_when_resumed(tmp_path, numbers):
    with RunningJob(
        "train",
        tmp_path,
        "watched",
        environment={"GATES": "step-3"},
        model_def="counting.custom_model",
        training_data=numbers,
        batch_size=10,
        num_minibatches_per_task=4,
        dashboard=0,
        events=tmp_path / "events.jsonl",
    ) as job:
        job.at_gate("step-3")
        page = Page((tmp_path / "watched.out").read_text())
        facts = page.wait("training", "/facts", lambda facts: facts["state"] == "training")
        assert (facts["job"], facts["ledger"]["total"]) == ("watched", 480)
        assert "<title>shoal</title>" in page.get("/").body
        assert page.request("GET", "/facts").status == 403
        assert page.request("GET", f"/facts?token={page.token}", Host="evil.example").status == 403
        with socket.socket() as other, pytest.raises(OSError, match=r"refused|unreachable"):
            other.connect(("127.0.0.2", page.port))
        job.process.send_signal(signal.SIGINT)
        job.open("step-3")
        ended = job.ended()
        assert ended.result["state"] == "stopped"
        assert "Traceback" not in ended.out + ended.err
        assert "the page of the job has ended with it; shoal dashboard watched shows" in ended.out
        page.assert_ended()
    # Who reads the events is not let in by them.
    assert page.token not in (tmp_path / "events.jsonl").read_text()

    job.gate.joinpath("step-3.open").unlink()
    job.gate.joinpath("step-3.reached").unlink(missing_ok=True)
    line = arguments_of("train", resume=job.folder.path, dashboard=0)
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"http://127\.0\.0\.1:\d+/\?token=", done.stdout)
    assert page.token not in done.stdout


def refused(folder, *more, **environment):
    """What the command says that does not begin the job."""
    (folder / "numbers.csv").write_text("id\n1\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "shoal", "train", "--model-def", "m.custom_model"),
            *("--training-data", "numbers.csv", *more),
        ],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.fullmatch("Error: .*\n", done.stderr)
    assert not (folder / "shoal-jobs").exists()
    return done.stderr


@pytest.mark.slow
def test_what_keeps_the_page_from_being_served_is_said_before_the_job(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        told = refused(tmp_path, "--dashboard", str(port))
    assert f"--dashboard: {port} cannot be used: Address already in use; choose another" in told
    assert "or 0 for any that is free" in told
    assert "--dashboard cannot be combined with" in refused(
        tmp_path, "--dashboard", "0", "--detach", "--image", "shoal:1"
    )
    (tmp_path / "uvicorn.py").write_text("raise ImportError('not here')\n")
    told = refused(tmp_path, "--dashboard", "0", PYTHONPATH=str(tmp_path))
    assert told.startswith("Error: --dashboard needs Starlette and uvicorn")
    assert "pip install 'shoal[dashboard]'" in told
