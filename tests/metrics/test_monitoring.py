"""The alerts and the dashboard of deploy/monitoring, judged by the real promtool."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from shoal.cluster import manifests, metrics

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
GUIDE = MONITORING.parents[1] / "docs" / "guide" / "metrics.md"

# tox tests the wheel, beside which there is no deploy folder.
pytestmark = pytest.mark.skipif(not MONITORING.is_dir(), reason="deploy/ is not beside the tests")
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus"
)

JOB = 'namespace="shoal", shoal_job="tide"'


def promtool(*line, text=None):
    done = subprocess.run(
        ["promtool", *map(str, line)], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def series(name, values, **labels):
    more = "".join(f', {key}="{value}"' for key, value in labels.items())
    return {"series": f"{name}{{{JOB}{more}}}", "values": values}


def fires(alert, at, found, **labels):
    """A case of promtool: at this time the alert fires with these labels, or does not at all."""
    expected = {
        "severity": "warning",
        "namespace": "shoal",
        "shoal_job": "tide",
        **labels,
    }
    given = {"alertname": alert, "eval_time": at}
    return given | ({"exp_alerts": [{"exp_labels": expected}]} if found else {"exp_alerts": []})


def judge(tmp_path, inputs, *cases):
    """Have promtool run the rules over series of a sample a minute."""
    rules = yaml.safe_load((MONITORING / "rules.yaml").read_text())
    for rule in rules["groups"][0]["rules"]:
        del rule["annotations"]  # promtool compares them word by word
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    test = {"interval": "1m", "input_series": inputs, "alert_rule_test": list(cases)}
    whole = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(whole))
    promtool("test", "rules", tmp_path / "test.yaml")


@needs_promtool
def test_the_rules_are_valid():
    assert "6 rules found" in promtool("check", "rules", MONITORING / "rules.yaml")


def test_the_operator_has_the_same_rules():
    whole = yaml.safe_load((MONITORING / "rules-of-operator.yaml").read_text())
    assert whole["spec"] == yaml.safe_load((MONITORING / "rules.yaml").read_text())
    listed = yaml.safe_load((MONITORING / "kustomization.yaml").read_text())["resources"]
    assert all((MONITORING / name).is_file() for name in listed)


@pytest.mark.skipif(not GUIDE.is_file(), reason="the docs are not beside the tests")
def test_the_guide_explains_each_alert():
    rules = yaml.safe_load((MONITORING / "rules.yaml").read_text())["groups"][0]["rules"]
    row = re.compile(r"^\| `(Shoal\w+)` \|", re.MULTILINE)
    assert row.findall(GUIDE.read_text()) == [rule["alert"] for rule in rules]


@needs_promtool
def test_a_job_that_trains_nothing_is_told(tmp_path):
    judge(
        tmp_path,
        [
            series("shoal_job_state", "1x40", state="training"),
            series("shoal_job_records_done", "0+100x9 900x30"),
        ],
        fires("ShoalJobStalled", "9m", found=False, state="training"),
        fires("ShoalJobStalled", "30m", found=True, state="training"),
    )
    # Evaluation may take as long as it takes.
    judge(
        tmp_path,
        [
            series("shoal_job_state", "0x40", state="training"),
            series("shoal_job_records_done", "900x40"),
        ],
        fires("ShoalJobStalled", "30m", found=False),
    )


@needs_promtool
def test_a_job_that_waits_or_does_not_begin_is_told(tmp_path):
    waits = [series("shoal_job_waiting", "0x9 1x60")]
    begins = [
        series("shoal_job_waiting", "0 1 0 1 0x60"),
        series("shoal_job_state", "0x9 1x60", state="starting"),
    ]
    for inputs in (waits, begins):
        judge(
            tmp_path,
            inputs,
            fires("ShoalJobWaits", "38m", found=False),
            fires("ShoalJobWaits", "41m", found=True),
        )
    judge(
        tmp_path,
        [
            series("shoal_job_waiting", "1x20 0 1x20"),
            series("shoal_job_state", "0x60", state="starting"),
        ],
        fires("ShoalJobWaits", "39m", found=False),
    )


@needs_promtool
def test_a_master_that_crashes_or_never_runs_is_told(tmp_path):
    found = fires("ShoalMasterFails", "20m", found=True)
    begun = "process_start_time_seconds"
    inputs = [series(begun, "0x9 600 700 800x30", shoal_role="master")]
    judge(tmp_path, inputs, fires("ShoalMasterFails", "12m", found=False), found)
    inputs = [series(begun, "0x9 600x30", shoal_role="master")]
    inputs += [series("up", "1x40", shoal_role="master"), series("up", "0x40", shoal_role="ps")]
    judge(tmp_path, inputs, fires("ShoalMasterFails", "20m", found=False))
    judge(tmp_path, [series("up", "1x9 0x40", shoal_role="master")], found)

    def pod(name, role, phase):
        own = f'namespace="shoal", pod="{name}"'
        labels = f'{own}, label_shoal_dev_job="tide", label_shoal_dev_role="{role}"'
        return [
            {"series": f"kube_pod_labels{{{labels}}}", "values": "1x40"},
            {"series": f'kube_pod_status_phase{{{own}, phase="{phase}"}}', "values": "1x40"},
        ]

    for pods, expected in (
        (pod("tide-master-x", "master", "Pending"), True),
        (pod("tide-master-x", "master", "Running") + pod("tide-ps-0", "ps", "Pending"), False),
    ):
        judge(tmp_path, pods, fires("ShoalMasterPending", "20m", found=expected))


@needs_promtool
def test_three_restarts_are_told_and_preemptions_are_not(tmp_path):
    inputs = [
        series("shoal_restarts_total", "0x9 1 2 3x30", role="ps", reason="killed"),
        series("shoal_restarts_total", "0x9 1 2 3 4 5x30", role="worker", reason="displaced"),
        series("shoal_restarts_total", "0x9 1x30", role="worker", reason="crashed"),
    ]
    judge(
        tmp_path,
        inputs,
        fires("ShoalProcessesRestart", "9m", found=False),
        fires("ShoalProcessesRestart", "14m", found=True, role="ps"),
        fires("ShoalProcessesRestart", "40m", found=False),
    )


@needs_promtool
def test_updates_that_a_death_would_cost_are_told(tmp_path):
    training = series("shoal_job_state", "1x90", state="training")
    told = fires("ShoalUpdatesAtRisk", "20m", found=True)
    judge(
        tmp_path,
        [training, series("shoal_log_unprotected", "0x9 1x80", shoal_index="1")],
        fires("ShoalUpdatesAtRisk", "12m", found=False),
        told,
    )
    judge(
        tmp_path,
        [training, series("shoal_checkpoint_age_seconds", "3000+60x90")],
        fires("ShoalUpdatesAtRisk", "9m", found=False),
        told,
    )
    judge(
        tmp_path,
        [
            series("shoal_job_state", "0x90", state="training"),
            series("shoal_checkpoint_age_seconds", "9000x90"),
            series("shoal_log_unprotected", "0x90"),
        ],
        fires("ShoalUpdatesAtRisk", "60m", found=False),
    )


def test_the_pod_monitor_finds_the_pods_port_and_token():
    found = yaml.safe_load((MONITORING / "podmonitor.yaml").read_text())["spec"]
    (endpoint,) = found["podMetricsEndpoints"]
    assert endpoint["port"] == metrics.PORT_NAME
    assert endpoint["authorization"]["credentials"] == {
        "name": "shoal-metrics",
        "key": metrics.TOKEN_KEY,
    }
    (expression,) = found["selector"]["matchExpressions"]
    assert expression == {"key": manifests.JOB_LABEL, "operator": "Exists"}
    copied = {each["targetLabel"]: each["sourceLabels"] for each in endpoint["relabelings"]}
    for target, label in (
        ("shoal_job", manifests.JOB_LABEL),
        ("shoal_role", manifests.ROLE_LABEL),
        ("shoal_index", manifests.INDEX_LABEL),
    ):
        name = re.sub(r"[^a-z]", "_", label)
        assert copied[target] == [f"__meta_kubernetes_pod_label_{name}"]


def test_the_panels_of_the_dashboard_do_not_cover_each_other():
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in panels]
    assert len(set(places)) == len(panels)
    assert len({each["id"] for each in panels}) == len(panels)
    assert all(each["gridPos"]["x"] + each["gridPos"]["w"] <= 24 for each in panels)
