"""Who may see the page of a job, and what it says of one that has ended."""

import json
import os
import shutil
import socket
import subprocess
import sys

import pytest

from shoal.base.disk.job_folder import JobFolder
from tests.tools.dashboard.conftest import EVIL, LONG
from tests.tools.dashboard.dashboards import Dashboard

pytest.importorskip("starlette", reason="the extra shoal[dashboard] is not installed")
pytest.importorskip("uvicorn", reason="the extra shoal[dashboard] is not installed")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dashboard(ended):
    with Dashboard("clicks", ended) as running:
        yield running


def test_an_ended_job_is_told_by_its_result(dashboard):
    facts = dashboard.json("/facts")
    assert (facts["job"], facts["state"], facts["ended"]) == ("clicks", "failed", True)
    assert facts["failure"] == f"it broke {EVIL}"
    counts = {"total": 100, "trained_once": 90, "repeated": 4, "failed": 1, "pending": 5}
    assert facts["ledger"] == counts
    assert facts["version"] == 12
    assert facts["evaluation"]["metrics"] == {"auc": 0.75, LONG: 0.5, "loss": None}
    (table,) = facts["tables"]
    assert table == {"name": LONG, "rows": 12_000_000, "bytes": 3e9, "counted": 7, "removed": 3}
    assert '/home/me/model.py", line 9, in custom_model\n    1 / 0' in facts["cause"]
    assert facts["cause_log"] == "worker-0.10.log"
    assert [bar["thread"] for bar in facts["stages"]] == ["input", "step"]
    assert facts["stages"][1]["parts"] == [["wait for pull", 0.1], ["step", 0.7]]
    assert facts["messages"][0] == {"t": 1.5, "text": f"worker-0 died {EVIL}"}
    assert dashboard.json("/course")["lanes"] == []


def test_logs_are_listed_and_their_ends_shown(dashboard):
    names = dashboard.json("/logs")["lines"]
    assert names == ["master.log", "worker-0.10.log", "worker-0.9.log"]
    assert dashboard.json("/logs/master.log")["lines"][:2] == ["one", EVIL]
    lines = dashboard.json("/logs/worker-0.9.log")["lines"]
    assert len(lines) == 200
    assert lines[-1] == "99999"


@pytest.mark.parametrize(
    "path",
    [
        "/logs/nothing.log",
        "/logs/..%2Fjob.json",
        "/logs/%2Fetc%2Fpasswd",
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/nothing",
    ],
)
def test_no_other_file_is_shown(dashboard, path):
    answer = dashboard.get(path)
    if answer.status == 200:
        assert "has no log" in json.loads(answer.body)["error"]
        assert json.loads(answer.body)["lines"] == []
    else:
        assert answer.status == 404


def test_no_credential_is_shown(dashboard):
    for path in ("/facts", "/course", "/logs/master.log"):
        assert "secretsecret" not in dashboard.get(path).body


def test_nobody_gets_in_without_the_token(dashboard):
    for path in (
        "/",
        "/jobs",
        "/facts",
        "/facts?job=clicks",
        "/course",
        "/logs",
        "/logs/master.log",
        "/static/page.js",
    ):
        refused = dashboard.request("GET", path)
        assert refused.status == 403
        assert "open the whole address" in refused.body
        assert "clicks" not in refused.body
        assert dashboard.get(path).status == 200
    for wrong in ("", "x", dashboard.token[:-1], dashboard.token + "x", "%ff"):
        assert dashboard.request("GET", f"/?token={wrong}").status == 403
        cookie = f"shoal_dashboard_{dashboard.port}={wrong}"
        assert dashboard.request("GET", "/facts", Cookie=cookie).status == 403
    # The cookie of another dashboard of this machine.
    cookie = f"shoal_dashboard_1={dashboard.token}"
    assert dashboard.request("GET", "/facts", Cookie=cookie).status == 403


def test_the_url_gives_a_cookie_and_leaves_the_address(dashboard):
    answer = dashboard.request("GET", f"/?token={dashboard.token}")
    assert (answer.status, answer.headers["location"]) == (303, "/?job=clicks")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    kept = cookie.partition(";")[0]
    assert "<title>shoal</title>" in dashboard.request("GET", "/", Cookie=kept).body


def test_a_cookie_of_another_program_is_no_trouble(dashboard):
    cookie = f"a{{b=1; shoal_dashboard_{dashboard.port}={dashboard.token}"
    assert dashboard.request("GET", "/facts", Cookie=cookie).status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_name_of_somebody_else_is_refused(dashboard, host):
    refused = dashboard.request("GET", f"/facts?token={dashboard.token}", Host=host)
    assert refused.status == 403
    assert "127.0.0.1 and localhost only" in refused.body


@pytest.mark.parametrize("host", ["localhost:9", "LOCALHOST", "[::1]:80", "127.0.0.1"])
def test_names_of_this_machine_are_taken_at_any_port(dashboard, host):
    assert dashboard.request("GET", f"/facts?token={dashboard.token}", Host=host).status == 200


def test_the_page_may_load_its_own_files_alone_and_be_framed_by_nobody(dashboard):
    answer = dashboard.get("/")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'self'; ")
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "no-referrer"
    for part in ("://", " style=", "onclick", "<style"):
        assert part not in answer.body


def test_nothing_can_be_changed(dashboard):
    cookie = f"shoal_dashboard_{dashboard.port}={dashboard.token}"
    for method in ("POST", "PUT", "DELETE"):
        assert dashboard.request(method, "/facts", Cookie=cookie).status == 405


def test_it_listens_at_this_machine_alone(dashboard):
    with socket.socket() as other, pytest.raises(OSError, match=r"refused|unreachable"):
        other.connect(("127.0.0.2", dashboard.port))


def test_all_jobs_are_listed_and_each_can_be_shown(ended, tmp_path):
    shutil.copytree(ended / "shoal-jobs", tmp_path / "shoal-jobs")
    other = JobFolder(tmp_path / "shoal-jobs" / "other job&")
    other.path.mkdir()
    other.config.write_text((ended / "shoal-jobs" / "clicks" / "job.json").read_text())
    os.utime(other.config, (0, 0))
    with Dashboard("", tmp_path) as running:
        assert running.request("GET", f"/?token={running.token}").headers["location"] == "/"
        assert "jobs.js" in running.get("/").body
        assert "page.js" in running.get("/?job=clicks").body
        listed = running.json("/jobs")
        assert listed["place"] == "on this machine, in ./shoal-jobs"
        first, second = listed["jobs"]
        assert (first["name"], first["state"], first["took"]) == ("clicks", "failed", 12.5)
        assert first["metrics"] == {"auc": 0.75, LONG: 0.5, "loss": None}
        assert (second["name"], second["state"]) == ("other job&", "killed")
        assert running.json("/facts?job=clicks")["state"] == "failed"
        assert running.json("/facts?job=other+job%26")["job"] == "other job&"
        assert running.json("/logs/master.log?job=clicks")["lines"][0] == "one"
        for nobody in ("?job=nobody", "?job=../clicks", ""):
            answer = running.get(f"/facts{nobody}")
            assert (answer.status, answer.body[:16]) == (404, "there is no job ")


def test_ctrl_c_is_its_usual_end(ended):
    with Dashboard("shoal-jobs/clicks", ended) as running:
        assert running.interrupted() == (0, "")
        running.assert_ended()


def test_a_job_that_is_begun_anew_is_shown_anew(ended, tmp_path):
    folder = JobFolder(tmp_path / "again")
    folder.logs.mkdir(parents=True)
    config = (ended / "shoal-jobs" / "clicks" / "job.json").read_text()
    folder.config.write_text(config)
    with Dashboard(folder.path, tmp_path) as running:
        before = running.json("/facts")
        assert (before["state"], before["ended"]) == ("killed", True)
        assert before["failure"].startswith("the job was killed")
        # As --overwrite does.
        other = folder.path / "other.json"
        other.write_text(config)
        other.rename(folder.config)
        stopped = {"job_name": "again", "command": "train", "state": "stopped"}
        folder.result.write_text(json.dumps(stopped))
        after = running.wait("the result", "/facts", lambda facts: facts["state"] == "stopped")
        assert after["course"] != before["course"]


def test_a_journal_that_cannot_be_read_is_told_and_the_rest_is_shown(ended, tmp_path):
    folder = JobFolder(tmp_path / "damaged")
    shutil.copytree(ended / "shoal-jobs" / "clicks", folder.path)
    folder.journal.mkdir()
    (folder.journal / "000001.journal").write_bytes(b"nothing of shoal's")
    with Dashboard(folder.path, tmp_path) as running:
        facts = running.wait("the reason", "/facts", lambda facts: facts["untold"])
        assert "000001.journal is damaged, or not a segment of a journal" in facts["untold"]
        assert facts["state"] == "failed"
        assert facts["messages"]


def refused(*line, folder, **environment):
    done = subprocess.run(
        [sys.executable, "-m", "shoal", "dashboard", *line],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "KUBECONFIG": "/dev/null"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_errors_name_the_job_and_the_port(ended, dashboard):
    assert "there is no job nothing on this machine" in refused("nothing", folder=ended)
    taken = refused("clicks", "--port", str(dashboard.port), folder=ended)
    assert f"--port: {dashboard.port} cannot be used: Address already in use" in taken


def test_without_the_libraries_the_command_says_what_to_install(ended, tmp_path):
    (tmp_path / "uvicorn.py").write_text("raise ImportError('not here')\n")
    told = refused("clicks", folder=ended, PYTHONPATH=str(tmp_path))
    assert "pip install 'shoal[dashboard]'" in told
