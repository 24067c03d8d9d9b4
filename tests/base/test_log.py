"""Log lines: text and JSON, with the fields of the process, and what no line may hold."""

import json
import logging
import subprocess
import sys
import threading

import pytest

from shoal.base import log
from shoal.base.disk.job_folder import JobFolder
from tests.ps.processes import write_job


@pytest.fixture
def configured():
    """log.configure, undone at the end."""
    root, hooks = logging.getLogger(), (sys.excepthook, threading.excepthook)
    before = root.handlers[:], root.level
    yield log.configure
    logging.captureWarnings(False)
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    sys.excepthook, threading.excepthook = hooks


def lines(capsys):
    return capsys.readouterr().err.splitlines()


def test_a_line_of_text_names_job_process_and_task(configured, capsys):
    task = 0
    configured("worker", "info", job="demo", index=3, task=lambda: task)
    logging.getLogger("a.b").info("one of %d", 2)
    task = 12
    logging.getLogger("a.b").error("two\nlines")
    logging.getLogger("a.b").debug("below the level")
    first, second, rest = lines(capsys)
    assert first.endswith(" INFO    demo worker-3 a.b: one of 2")
    assert second.endswith(" ERROR   demo worker-3 task 12 a.b: two")
    assert rest == "lines"


def test_a_process_that_is_the_only_one_of_its_role_has_no_number(configured, capsys):
    configured("master", "info", job="demo")
    logging.getLogger("a").info("hello")
    (line,) = lines(capsys)
    assert line.endswith(" INFO    demo master a: hello")


def test_a_traceback_in_text_stands_below_its_line_as_python_writes_it(configured, capsys):
    configured("worker", "info", job="demo", index=0)
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("a").exception("failed")
    first, second, *_, last = lines(capsys)
    assert first.endswith(": failed")
    assert second == "Traceback (most recent call last):"
    assert last == "ValueError: no"


def test_each_line_of_json_has_its_fields(configured, capsys):
    configured("worker", "info", "json", job="demo", index=0, task=lambda: 7)
    try:
        raise ValueError("s3://me:key@bucket")
    except ValueError:
        logging.getLogger("a.b").exception("reading\n%s", "s3://me:key@bucket")
    (failed,) = map(json.loads, lines(capsys))
    assert failed.pop("time").endswith("Z")
    traceback = failed.pop("exception")
    assert traceback.startswith("Traceback (most recent call last):")
    assert traceback.endswith("ValueError: s3://***@bucket")
    assert failed == {
        "level": "error",
        "logger": "a.b",
        "job": "demo",
        "role": "worker",
        "index": 0,
        "task": 7,
        "message": "reading\ns3://***@bucket",
    }


def test_json_leaves_out_what_has_no_value(configured, capsys):
    configured("master", "info", "json")
    logging.getLogger("a").info("hello")
    (line,) = map(json.loads, lines(capsys))
    assert set(line) == {"time", "level", "logger", "role", "message"}


def test_warnings_and_uncaught_exceptions_are_lines_of_json():
    program = """
import threading, warnings
from shoal.base import log
log.configure("worker", "info", "json", job="demo", index=1)
def broken(): raise KeyError("in a thread")
thread = threading.Thread(target=broken, name="reader")
thread.start(); thread.join()
warnings.warn("old")
raise KeyError("at last")
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 1
    of_thread, warned, of_process = map(json.loads, ran.stderr.splitlines())
    assert of_thread["message"] == "thread reader ends"
    assert of_thread["exception"].endswith("KeyError: 'in a thread'")
    assert warned["logger"] == "py.warnings"
    assert "UserWarning: old" in warned["message"]
    assert of_process["level"] == "critical"
    assert of_process["exception"].endswith("KeyError: 'at last'")


def test_a_real_server_logs_in_the_form_that_its_job_has(tmp_path):
    write_job(tmp_path, log_format="json")
    command = [sys.executable, "-m", "shoal.ps", "--index", "1"]
    command += ["--config", str(JobFolder(tmp_path).config)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = server.stdout.readline().strip()
    finally:
        server.terminate()
        _, text = server.communicate()
    # Libraries in C may write lines of their own.
    written = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert written[0]["message"] == f"listening on {address}"
    assert {(line["job"], line["role"], line["index"]) for line in written} == {("test", "ps", 1)}
