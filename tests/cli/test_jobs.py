"""Jobs with a scripted master: ends, exit codes, reports, and nothing left behind."""

import contextlib
import dataclasses
import inspect
import os
import pydoc
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import shoal
from shoal.api import jobs
from shoal.cli.main import main
from shoal.client.found.claim import numbered
from shoal.client.found.processes import job_processes
from shoal.client.run.local import run_job
from shoal.client.show.display import Display
from shoal.config.job import JobConfig
from tests.docs.test_flags import OWN
from tests.waiting import until

ARGUMENTS = ["train", "--model-def", "model.custom_model", "--training-data", "train.csv"]


def run(*more):
    result = CliRunner().invoke(main, [*ARGUMENTS, *more], prog_name="shoal")
    assert job_processes(os.path.abspath("shoal-jobs/model/job.json")) == []
    return result


class Recorder(Display):
    """Keeps events; calls `on_status` with each status."""

    def __init__(self, on_status=lambda status: None):
        super().__init__()
        self.events = []
        self.on_status = on_status

    def event(self, text):
        self.events.append(text)

    def draw(self, status):
        self.on_status(status)


def config():
    return JobConfig(model_def="model.custom_model", training_data="train.csv")


def test_a_job_that_succeeds_is_reported(project, scripted):
    scripted("succeed")
    result = run("--output", "out")
    assert result.exit_code == 0, result.output
    assert "worker-0 died" in result.stdout
    assert "training: tasks 1/4, epoch 1/1, samples/s 1,234" in result.stdout
    assert "100 = 90 trained once + 10 repeated + 0 failed" in result.stdout
    assert "0.7500" in result.stdout
    assert "output            out\n" in result.stdout  # relative to the working directory


def test_a_failure_of_the_user_s_code_shows_its_traceback(project, scripted):
    scripted("USER_CODE")
    result = run()
    assert result.exit_code == 1
    assert 'File "/home/me/model.py", line 7, in feed' in result.stderr
    assert "Error: it broke" in result.stderr


def test_a_failure_by_wrong_input_is_one_line(project, scripted):
    scripted("USER_ERROR")
    result = run()
    assert result.exit_code == 2
    assert result.stderr == "Error: it broke\n"


def test_a_master_that_dies_is_quoted_and_leaves_no_child(project, scripted):
    scripted("orphan")
    result = run()
    assert result.exit_code == 1
    assert "master ended with code 3 without a result" in result.stderr
    assert "the last words" in result.stderr
    of_project = os.fsencode(project)
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # another one that has ended meanwhile
            assert of_project not in process.read_bytes()


def test_an_ended_job_can_be_replaced(project, scripted):
    scripted("succeed")
    assert run("--output", "out").exit_code == 0
    assert "has run before" in run("--output", "out").stderr
    (project / "shoal-jobs" / "model" / "logs" / "old.log").touch()
    (project / "out").mkdir()
    (project / "out" / "manifest.json").write_text('{"format": "shoal-export-1"}')
    assert run("--output", "out", "--overwrite").exit_code == 0
    assert not (project / "shoal-jobs" / "model" / "logs" / "old.log").exists()
    # The earlier model stays until the exporter has a new one; this job exported none.
    assert (project / "out" / "manifest.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_stops_the_job(project, scripted, number):
    scripted("wait")
    sent = []

    def interrupt_once(status):
        if not sent:
            sent.append(number)
            os.kill(os.getpid(), number)

    result = run_job(config(), Recorder(interrupt_once))
    assert (result.state, result.exit_code) == ("stopped", 130)
    assert job_processes(project / "shoal-jobs" / "model" / "job.json") == []


def test_a_second_interruption_kills(project, scripted):
    scripted("stubborn")
    display = Recorder(lambda status: os.kill(os.getpid(), signal.SIGINT))
    result = run_job(config(), display)
    assert (result.state, result.exit_code) == ("stopped", 130)
    assert any("interrupt again" in event for event in display.events)
    assert job_processes(project / "shoal-jobs" / "model" / "job.json") == []


def test_a_bug_in_the_display_leaves_no_process(project, scripted):
    scripted("wait")

    def fail(status):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_job(config(), Recorder(fail))
    assert job_processes(project / "shoal-jobs" / "model" / "job.json") == []


def test_a_second_command_is_refused_while_the_first_runs(project, scripted):
    scripted("wait")
    refused = []

    def second(status):
        if not refused:
            with pytest.raises(shoal.UserError, match="already running"):
                run_job(config(), Recorder())
            refused.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    assert run_job(config(), Recorder(second)).state == "stopped"
    assert refused


def test_the_python_api_returns_the_result(project, scripted, capsys):
    scripted("succeed")
    result = shoal.train(model_def="model.custom_model", training_data=project / "train.csv")
    assert (result.state, result.metrics["auc"]) == ("succeeded", 0.75)
    assert result.job_dir == project / "shoal-jobs" / "model"


def test_the_python_api_raises_for_a_failed_job(project, scripted):
    scripted("USER_CODE")
    with pytest.raises(shoal.JobFailedError, match="it broke") as caught:
        shoal.train(model_def="model.custom_model", training_data="train.csv", display=Recorder())
    assert caught.value.result.state == "failed"


def test_the_python_api_works_in_a_thread(project, scripted):
    scripted("succeed")
    results = []
    thread = threading.Thread(target=lambda: results.append(run_job(config(), Recorder())))
    thread.start()
    thread.join()
    assert results[0].state == "succeeded"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epoch": 2}, r"no argument epoch \(did you mean epochs\?\)"),
        ({"epochs": "2"}, "^epochs must be of type int"),
        ({"epochs": True}, "^epochs must be of type int"),
        ({"restore": "x"}, "no argument restore"),
        ({}, "^shoal.train needs the argument model_def, or model$"),
        (
            {"model_def": "model.custom_model", "training_data": [1]},
            "^training_data must be a path, a URL, a DataFrame .* dict of arrays, not a list$",
        ),
        ({"model": 1, "model_def": "a.b"}, "^give either model_def or model: both name the model$"),
        (
            {"model": 1, "training_data": {"a": [1]}, "image": "i"},
            "^image: training_data is given by value, which works on this machine only",
        ),
        ({"epochs": "x" * 500}, r"^epochs must be of type int, not 'xxx.{,60}'$"),
        (
            {"model_def": "a.b", "sync_late": "fold", "training_data": "x"},
            "^sync_late works only with sync=True: add sync=True$",
        ),
    ],
)
def test_the_python_api_checks_its_arguments(project, fields, message):
    with pytest.raises(shoal.UserError, match=message):
        shoal.train(**fields)


def test_a_cell_can_be_run_twice(project, scripted):
    scripted("succeed")
    fields = {"model_def": "model.custom_model", "training_data": "train.csv"}
    names = [shoal.train(**fields, display=Recorder()).job_dir.name for _ in range(3)]
    assert names == ["model", "model-2", "model-3"]
    fields |= {"job_name": "model"}
    with pytest.raises(shoal.UserError, match=r"or replace it with overwrite=True$") as caught:
        shoal.train(**fields, display=Recorder())
    assert str(caught.value).startswith("job_name: job model has run before")
    assert shoal.train(**fields, overwrite=True, display=Recorder()).state == "succeeded"


def test_two_threads_get_two_numbers(project):
    with numbered("model") as first, ThreadPoolExecutor(1) as other:

        def name():
            with numbered("model") as given:
                return given

        assert (first, other.submit(name).result()) == ("model", "model-2")
    with numbered("model") as again:
        assert again == "model"  # no job has run under it


def test_a_job_whose_begin_is_interrupted_ends_with_it(monkeypatch):
    """As by the button Stop, while the data of a cell are written."""
    seen = []

    def run(display, interruptions):
        while not interruptions.count:
            time.sleep(0.001)
        seen.append(interruptions.count)
        raise RuntimeError

    def interrupted():
        raise KeyboardInterrupt

    class Kept(jobs._Kept):
        def __init__(self):
            super().__init__()
            self.begun.wait = interrupted

    monkeypatch.setattr(jobs, "_Kept", Kept)
    with pytest.raises(KeyboardInterrupt):
        jobs.Job(run)
    assert seen == [2]
    assert not any(each.name == "shoal job" for each in threading.enumerate())


def test_a_job_that_is_not_waited_for_is_asked_and_stopped(project, scripted):
    scripted("wait")
    fields = {"model_def": "model.custom_model", "training_data": "train.csv", "wait": False}
    with pytest.raises(shoal.UserError, match=r"^training_data: there is no file"):
        shoal.train(**fields | {"training_data": "nothing.csv"})
    with pytest.raises(shoal.UserError, match=r"^display is not for wait=False"):
        shoal.train(**fields, display=Recorder())
    job = shoal.train(**fields)
    assert (job.name, job.job_dir) == ("model", project / "shoal-jobs" / "model")
    assert job.running
    # Its master, which is none here, writes the first row.
    assert (len(job.metrics), [*job.metrics][:2]) == (0, ["time", "seconds"])
    assert [*map(str, job.metrics.dtypes[:2])] == ["datetime64[ns, UTC]", "float64"]
    with pytest.raises(shoal.UserError, match=r"^workers must be an integer of at least 1, not 0$"):
        job.scale(workers=0)
    with pytest.raises(
        shoal.UserError, match=r"^job model has no process worker-0; there are: mas"
    ):
        job.logs("worker")
    with pytest.raises(TimeoutError, match=r"^job model has not ended within 0\.01 s$"):
        job.result(timeout=0.01)
    job.stop()
    with pytest.raises(shoal.JobFailedError, match=r"^the job was stopped$") as caught:
        job.result()
    assert caught.value.result.state == "stopped"
    assert not job.running
    assert "stopping; interrupt again to kill the job at once" in job.messages
    assert job_processes(job.job_dir / "job.json") == []
    assert job.logs() == ""


def test_a_job_that_another_program_began_is_asked_and_stopped(project, scripted, request):
    """As after a restart of a notebook's kernel."""
    scripted("wait")
    fields = {"model_def": "model.custom_model", "training_data": "train.csv"}
    begun = shoal.train(**fields, wait=False)
    request.addfinalizer(begun.stop)  # else a failed test waits for it
    until("the master", lambda: "tasks" in begun.status())
    job = shoal.attach("model")
    assert (job.name, job.job_dir) == ("model", begun.job_dir)
    until("its answer", lambda: "tasks 1/4" in job.status())
    assert job.running
    assert "1.0 s: worker-0 died" in job.messages
    assert shoal.jobs()["state"]["model"] == "running"
    job.stop()
    for each in (job, begun):
        with pytest.raises(shoal.JobFailedError, match=r"^the job was stopped$") as caught:
            each.result()
        assert caught.value.result.state == "stopped"
    assert shoal.attach("model").state == "stopped"
    with pytest.raises(shoal.UserError, match=r"^job model does not run: it has ended: stopped$"):
        job.stop()


def test_a_job_that_was_not_waited_for_gives_its_result(project, scripted):
    scripted("succeed")
    fields = {"model_def": "model.custom_model", "training_data": "train.csv"}
    job = shoal.train(**fields, metrics_seconds=0, wait=False)
    assert job.result().metrics["auc"] == 0.75
    with pytest.raises(shoal.UserError, match=r"^there is no .*run with metrics_seconds=0"):
        _ = job.metrics
    assert repr(job) == "Job model: succeeded"
    assert job.history == {"version": [], "epoch": [], "records": [], "loss": []}


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_a_trained_model_is_used_beside_the_program(project, scripted, command):
    scripted("wait")
    (project / "trained").mkdir()
    (project / "trained" / "manifest.json").write_text("{}")
    fields = {"model_def": "model.custom_model", "restore_from": "trained", "wait": False}
    fields |= {"validation_data": "train.csv"} if command == "evaluate" else {}
    fields |= {"prediction_data": "train.csv", "output": "answers"} if command == "predict" else {}
    start = getattr(shoal, command)
    with pytest.raises(shoal.UserError, match=r"^restore_from: .*nothing"):
        start(**fields | {"restore_from": "nothing"})
    with pytest.raises(shoal.UserError, match=r"^display is not for wait=False"):
        start(**fields, display=Recorder())
    job = start(**fields)
    assert job.name == f"model-{command}"
    assert job.running
    job.stop()
    with pytest.raises(shoal.JobFailedError, match=r"^the job was stopped$") as caught:
        job.result()
    assert caught.value.result.state == "stopped"
    scripted("succeed")
    job = start(**fields)
    assert job.result().command == command
    assert repr(job) == f"Job model-{command}-2: succeeded"


def test_a_result_is_taken_for_restore_from(project, scripted):
    scripted("succeed")
    fields = {"model_def": "model.custom_model", "display": Recorder()}
    (project / "trained").mkdir()
    (project / "trained" / "manifest.json").write_text("{}")
    trained = shoal.train(training_data="train.csv", embedding_threshold=7, **fields)
    with pytest.raises(shoal.UserError, match=r"^restore_from: job model has neither"):
        shoal.evaluate(restore_from=trained, validation_data="train.csv")
    trained = dataclasses.replace(trained, output=str(project / "trained"))
    del fields["model_def"]
    done = shoal.evaluate(restore_from=trained, validation_data="train.csv", **fields)
    config = JobConfig.load(done.job_dir / "job.json")
    assert config.restore_from == str(project / "trained")
    assert (config.model_def, config.model_zoo) == ("model.custom_model", str(project))
    assert config.embedding_threshold == 7
    assert done.job_dir.name == "model-evaluate"


def test_data_of_a_program_are_in_the_job_s_folder(project, scripted):
    scripted("succeed")
    recorder = Recorder()
    data = pa.table({"a": [1, 2], "label": [0, 1]})
    fields = {"model_def": "model.custom_model", "job_dir": project / "job", "display": recorder}
    for _ in range(2):
        result = shoal.train(training_data=data, validation_data="train.csv", **fields)
        config = JobConfig.load(result.job_dir / "job.json")
        assert config.training_data == str(project / "job" / "given" / "training_data.parquet")
        assert pq.read_table(config.training_data).equals(data)
        assert config.validation_data == str(project / "train.csv")
        assert config.model_zoo == str(project)
        assert sorted(path.name for path in project.iterdir()) == ["job", "model.py", "train.csv"]
        fields |= {"overwrite": True}
    assert recorder.events[0].startswith("training_data: 2 records, ")


def test_the_last_records_of_a_program_s_data_are_validation_data(project, scripted, capsys):
    scripted("succeed")
    data = pd.DataFrame({"a": range(10), "label": [0, 1] * 5})
    fields = {"model_def": "model.custom_model", "validation_split": 0.25}
    given = shoal.train(**fields, training_data=data, verbose=0).job_dir / "given"
    # As Keras rounds.
    assert pd.read_parquet(given / "training_data.parquet")["a"].tolist() == [*range(7)]
    assert pd.read_parquet(given / "validation_data.parquet")["a"].tolist() == [7, 8, 9]
    assert capsys.readouterr() == ("", "")
    for more, message in (
        ({"training_data": "train.csv"}, "^validation_split is for data that the program holds"),
        ({"training_data": data, "validation_data": data}, r"^validation_split: .* is given, too"),
        ({"training_data": data[:1]}, "^validation_split: 0.25 of 1 record leaves none for train"),
        ({"training_data": data, "validation_split": 2}, "must be between 0 and 1, not 2$"),
        ({"training_data": data, "verbose": 3}, '^verbose must be "auto", 0, 1 or 2, not 3$'),
    ):
        with pytest.raises(shoal.UserError, match=message):
            shoal.train(**fields | more)


def test_a_result_is_shown_in_lines(project, scripted):
    scripted("succeed")
    fields = {"model_def": "model.custom_model", "training_data": "train.csv"}
    lines = repr(shoal.train(**fields, display=Recorder())).splitlines()
    assert lines[0] == "JobResult of shoal train: model"
    assert "  state             succeeded" in lines
    assert "  auc               0.7500" in lines
    assert "  loss              NaN" in lines
    assert any("100 total, 90 trained once, 10 repeated" in line for line in lines)
    assert f"  job folder        {project / 'shoal-jobs' / 'model'}" in lines


@pytest.mark.parametrize("command", ["train", "evaluate", "predict", "check"])
def test_help_tells_each_argument(command):
    function = getattr(shoal, command)
    parameters = inspect.signature(function).parameters
    assert "fields" not in parameters
    assert parameters["model_def"].kind is inspect.Parameter.KEYWORD_ONLY
    assert parameters["batch_size"].default == 256
    text = pydoc.render_doc(function, renderer=pydoc.plaintext)
    for name in parameters:
        assert f"  {name}: " in text or name in OWN
    assert "  batch_size: Records per step of one worker." in text
    assert "--" not in text


@pytest.mark.slow
def test_check_returns_what_it_found(project):
    """Without TensorFlow's part, which is tested as a command."""
    with pytest.raises(shoal.UserError, match=r"^model_def: .*model.py defines no nothing"):
        shoal.check(model_def="model.nothing", workers="2", output="out", display=Recorder())
    given = {"model_def": "model.custom_model", "training_data": "train.csv"}
    with pytest.raises(
        shoal.UserError, match=r"^validation_data: there is no file or folder .*nothing.csv"
    ):
        shoal.check(**given, validation_data="nothing.csv")
    with pytest.raises(shoal.UserError, match=r"^sync_late works only with sync=True"):
        shoal.check(**given, sync_late="fold")
    found = shoal.check(model_def="model.custom_model")
    assert not found
    assert "custom_model() of model.py returned NoneType, not a keras.Model" in repr(found)


def test_importing_shoal_costs_nothing():
    code = (
        "import sys, shoal; "
        "print([m for m in ('click','grpc','rich','numpy','pyarrow','keras') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert "train" in dir(shoal)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        shoal.nothing  # noqa: B018


def test_a_job_that_was_killed_before_it_had_a_journal_begins_as_it_is_resumed(project, scripted):
    scripted("succeed")
    folder = project / "shoal-jobs" / "model"
    (folder / "logs").mkdir(parents=True)
    (folder / "job.json").write_text(config().resolved().to_json())
    (folder / "checkpoints" / "checkpoint-00000001").mkdir(parents=True)
    resumed = CliRunner().invoke(main, ["train", "--resume", str(folder)], prog_name="shoal")
    assert resumed.exit_code == 2
    assert f"{folder}/journal, the job's journal, is missing" in resumed.output
    (folder / "checkpoints" / "checkpoint-00000001").rmdir()
    resumed = CliRunner().invoke(main, ["train", "--resume", str(folder)], prog_name="shoal")
    assert resumed.exit_code == 0, resumed.output
    assert "90 trained once" in resumed.output
