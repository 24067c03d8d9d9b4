"""The metrics of the processes of real jobs, read as Prometheus reads them."""

import json
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed

from tests.docs.pages import ROOT, with_pages
from tests.jobs.running import RunningJob, run, until

pytestmark = pytest.mark.job

INSTALL = "apt-get install prometheus"
MONITORING = ROOT / "deploy" / "monitoring"
GUIDE = ROOT / "docs" / "guide" / "metrics.md"


def targets(job):
    """{(role, index): address} of the pages, as the file says that Prometheus reads."""
    try:
        found = json.loads(job.folder.metrics_targets.read_text())
    except FileNotFoundError:
        return {}
    for each in found:
        assert each["labels"]["shoal_job"] == job.folder.path.name
    return {
        (each["labels"]["shoal_role"], int(each["labels"]["shoal_index"])): each["targets"][0]
        for each in found
    }


def text_of(address):
    assert address.startswith("127.0.0.1:")
    with urllib.request.urlopen(f"http://{address}/metrics") as reply:
        return reply.read().decode()


def read(address):
    """The families of metrics on the page of a process."""
    return list(parsed(text_of(address)))


def page(address):
    """{(sample, *values of labels, by the labels' names): value} of a process."""
    return {
        (each.name, *(value for _, value in sorted(each.labels.items()))): each.value
        for family in read(address)
        for each in family.samples
    }


@pytest.fixture(scope="module")
def at_step_4(tmp_path_factory, numbered):
    """A job of two servers whose worker stands before the push of its fourth step."""
    with RunningJob(
        "train",
        tmp_path_factory.mktemp("metrics"),
        "measured",
        environment={"GATES": "step-4"},
        model_def="counting.custom_model",
        training_data=numbered[0],
        batch_size=16,
        num_minibatches_per_task=8,
        pipeline_depth=0,
        servers="2",
        serve_metrics=True,
        metrics_hot_ids=3,
    ) as job:
        job.at_gate("step-4")

        def told():
            found = page(targets(job)["master", 0])
            forecast = {("shoal_memory_forecast_bytes", f"ps-{index}") for index in (0, 1)}
            return found["shoal_job_records_done",] == 48 and {("shoal_loss",), *forecast} <= {
                *found
            }

        until("a heartbeat after three steps, and the status of both servers", told)
        yield job
        job.open("step-4")
        job.ended().succeeded()
        assert json.loads(job.folder.metrics_targets.read_text()) == []


def test_every_process_says_what_it_is(at_step_4):
    found = targets(at_step_4)
    assert set(found) == {("master", 0), ("ps", 0), ("ps", 1), ("worker", 0)}
    for (role, index), address in found.items():
        samples = page(address)
        (info,) = [each for each in samples if each[0] == "shoal_process_info"]
        assert info[1:5] == ("0", str(index), "measured", role)
        assert samples["process_resident_memory_bytes",] > 1 << 20


def test_the_master_tells_how_far_the_job_is(at_step_4):
    found = page(targets(at_step_4)["master", 0])
    total = found["shoal_job_records",]
    assert found["shoal_training_records", "trained_once"] == 48
    assert found["shoal_training_records", "pending"] == total - 48
    assert found["shoal_job_state", "training"] == 1
    assert found["shoal_job_state", "starting"] == 0
    assert found["shoal_tasks", "leased"] >= 1
    assert found["shoal_processes", "worker", "alive"] == 1
    assert found["shoal_processes", "ps", "alive"] == 2
    assert found["shoal_processes_wanted", "ps"] == 2
    assert found["shoal_checkpoint_age_seconds",] >= 0
    assert found["shoal_loss",] < 0
    assert found["shoal_requests_total", "GetTask", "answered"] >= 1


def test_the_master_forecasts_the_servers_memory(at_step_4):
    found = page(targets(at_step_4)["master", 0])
    for index in (0, 1):
        has = page(targets(at_step_4)["ps", index])["process_resident_memory_bytes",]
        assert found["shoal_memory_forecast_bytes", f"ps-{index}"] > has / 2


def test_the_servers_tell_what_they_hold_and_do(at_step_4):
    found = targets(at_step_4)
    both = [page(found["ps", index]) for index in (0, 1)]
    for each in both:
        assert each["shoal_server_state", "serving"] == 1
        assert each["shoal_pushes_applied_total",] == 3
        assert each["shoal_push_staleness_count",] == 3
        assert each["shoal_push_staleness_bucket", "0.0"] == 3
        assert each["shoal_push_age_seconds_sum",] > 0
        assert each["shoal_requests_total", "Push", "answered"] == 3
        assert each["shoal_request_seconds_count", "Push"] == 3
        assert each["shoal_table_memory_bytes", "counts"] > 0
        assert each["shoal_log_bytes",] > 0
        # The first push was looked at: gradients of -1 are of norm 1.
        norms = [each["shoal_gradient_row_norm_bucket", le, "counts"] for le in ("0.1", "1.0")]
        assert norms[0] == 0 < norms[1] == each["shoal_gradient_row_norm_count", "counts"]
        hot = [key for key in each if key[0] == "shoal_hot_id_share"]
        assert len(hot) == 3
    rows = sum(each["shoal_table_rows", "counts"] for each in both)
    # Those of the step that stands still were pulled, and have rows too.
    assert 48 <= rows <= 64


def test_a_worker_tells_what_it_has_done(at_step_4):
    found = page(targets(at_step_4)["worker", 0])
    assert found["shoal_steps_total",] == 3
    assert found["shoal_records_trained_total",] == 48
    assert found["shoal_learning_rate",] == 1.0
    assert found["shoal_worker_state", "working"] == 1
    assert found["shoal_stage_seconds_total", "push"] > 0
    assert found["shoal_training_seconds_total",] > 0


@with_pages
def test_the_guide_names_each_metric(at_step_4):
    shown = {
        f"{family.name}_total" if family.type == "counter" else family.name: (
            family.type,
            set().union(*(each.labels for each in family.samples)) - {"le"},
        )
        for address in targets(at_step_4).values()
        for family in read(address)
        if family.name.startswith("shoal_")
    }
    row = re.compile(r"^\| `(shoal_\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)
    named = {
        name: (kind, set(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in row.findall(GUIDE.read_text())
    }
    # No evaluation yet, no --event-time, and no --autoscale.
    elsewhere = ("shoal_evaluation_", "shoal_event_time_", "shoal_scalings_")
    here = {name for name in named if not name.startswith(elsewhere)}
    assert here == set(shown)
    for name in here:
        assert named[name] == shown[name], name


@pytest.mark.skipif(shutil.which("promtool") is None, reason=f"no promtool: {INSTALL}")
def test_promtool_finds_nothing_to_mend(at_step_4):
    for address in targets(at_step_4).values():
        done = subprocess.run(
            ["promtool", "check", "metrics"],
            input=text_of(address),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.fixture
def prometheus(at_step_4, tmp_path):
    """Ask a Prometheus that reads the job as the guide says; returns what it answers."""
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(MONITORING / "rules.yaml")],
        "scrape_configs": [
            {
                "job_name": "shoal",
                "file_sd_configs": [{"files": [str(at_step_4.folder.metrics_targets)]}],
            }
        ],
    }
    (tmp_path / "prometheus.yaml").write_text(json.dumps(configuration))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    line = ["prometheus", f"--config.file={tmp_path / 'prometheus.yaml'}"]
    line += [f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address={address}"]
    with (tmp_path / "prometheus.log").open("w") as log:
        process = subprocess.Popen(line, stdout=log, stderr=log)

    def ask(path, **query):
        url = f"http://{address}/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url) as reply:
                return json.loads(reply.read())["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return None  # it begins
            pytest.fail(f"{query}: {error.read().decode()}")
        except urllib.error.URLError:
            assert process.poll() is None, (tmp_path / "prometheus.log").read_text()
            return None

    yield ask
    process.kill()
    process.wait()


MAY_BE_EMPTY = ("> 0", "shoal_evaluation_metric")
"""Parts of queries of the dashboard that tell nothing of a job in which nothing has happened."""


@pytest.mark.skipif(shutil.which("prometheus") is None, reason=f"no Prometheus: {INSTALL}")
@pytest.mark.skipif(not MONITORING.is_dir(), reason="deploy/ is not beside the tests")
def test_a_real_prometheus_reads_the_job_and_fills_the_dashboard(at_step_4, prometheus):
    def up():
        found = prometheus("api/v1/query", query='up{shoal_job="measured"} == 1')
        return found if found and len(found["result"]) == 4 else None

    found = until("four targets that are up", up)
    roles = sorted(each["metric"]["shoal_role"] for each in found["result"])
    assert roles == ["master", "ps", "ps", "worker"]
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    for text in expressions:
        query = text.replace("$job", "measured").replace("$__rate_interval", "1m")

        def told(query=query):
            return prometheus("api/v1/query", query=query)["result"]

        if any(part in text for part in MAY_BE_EMPTY):
            told()
        else:
            until(f"an answer to {query}", told)

    def judged():
        (group,) = prometheus("api/v1/rules")["groups"]
        rules = group["rules"]
        return rules if all(each["health"] != "unknown" for each in rules) else None

    for rule in until("rules that were judged", judged):
        assert rule["health"] == "ok", rule
        assert rule["state"] != "firing", rule


def test_restarts_are_counted_and_pages_follow(tmp_path, numbered):
    with RunningJob(
        "train",
        tmp_path,
        "killed",
        environment={"GATES": "step-3"},
        model_def="counting.custom_model",
        training_data=numbered[0],
        batch_size=16,
        serve_metrics=True,
    ) as job:
        job.at_gate("step-3")
        before = targets(job)
        job.kill("ps")
        job.kill("worker")

        until("other pages", lambda: targets(job)["worker", 0] != before["worker", 0])
        until("other pages", lambda: targets(job)["ps", 0] != before["ps", 0])
        found = page(targets(job)["master", 0])
        assert found["shoal_restarts_total", "killed", "worker"] == 1
        assert found["shoal_restarts_total", "killed", "ps"] == 1
        server = page(targets(job)["ps", 0])
        (info,) = [each for each in server if each[0] == "shoal_process_info"]
        assert info[1] == "1"  # the incarnation
        job.open("step-3")
        job.ended().succeeded()


def test_without_the_flag_nothing_is_served(tmp_path, numbered):
    ended = run(
        "train",
        tmp_path,
        "silent",
        model_def="counting.custom_model",
        training_data=numbered[0],
        batch_size=48,
    ).succeeded()
    assert ended.result["state"] == "succeeded"
    assert not (tmp_path / "silent" / "metrics_targets.json").exists()
    for log in (tmp_path / "silent" / "logs").iterdir():
        assert "/metrics" not in log.read_text()
