"""What a user does wrong: one clear message, the right exit code, nothing left."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import shoal
from shoal.client.found.processes import job_processes
from shoal.client.show.display import LineDisplay
from tests.jobs.running import MODELS, ZOO, arguments_of, completed, run

pytestmark = pytest.mark.job

BROKEN = {
    "model_def": "broken.custom_model",
    "batch_size": 50,
    "num_minibatches_per_task": 4,
    "relaunch_limit": 1,
}


def refused(folder, *more, **fields):
    """The message of a command that starts no job."""
    before = sorted(folder.rglob("*"))
    line = arguments_of("train", **({"model_zoo": ZOO} | fields)) + list(more)
    done = completed(line, folder)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    *usage, message = done.stderr.splitlines()
    assert message.startswith("Error: ")
    # What click says of a wrong flag is three lines, of which the last one counts.
    assert all(line.startswith(("Usage: ", "Try ")) or not line for line in usage)
    assert sorted(folder.rglob("*")) == before
    return message


def test_wrong_commands_are_refused_before_anything_starts(tmp_path, clicks):
    (tmp_path / "syntax.py").write_text("def custom_model():\n    return (1\n")
    complete = "def custom_model(): ...\ndef optimizer(): ...\ndef feed(d, m, x): ...\n"
    (tmp_path / "lossless.py").write_text(complete)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("mine")
    (tmp_path / "empty").mkdir()
    good = {"model_def": "small.custom_model", "training_data": clicks}

    def message(*more, **fields):
        return refused(tmp_path, *more, **(good | fields))

    assert message("--epochs", "many") == ("Error: --epochs must be a whole number, not 'many'")
    assert "No such option '--wrokers'. (Did you mean" in message("--wrokers", "2")
    missing = message(training_data=tmp_path / "nowhere")
    assert f"--training-data: there is no file or folder {tmp_path}/nowhere" in missing
    assert f"--training-data: the folder {tmp_path}/empty holds no" in message(
        training_data=tmp_path / "empty"
    )
    assert "syntax.py is not valid Python: line 2: '(' was never closed" in message(
        model_zoo=tmp_path, model_def="syntax.custom_model"
    )
    assert "lossless.py has no function loss()" in message(
        model_zoo=tmp_path, model_def="lossless.custom_model"
    )
    kept = message(output=tmp_path / "full")
    assert f"--output: the folder {tmp_path}/full is not empty" in kept
    assert (tmp_path / "full" / "precious").read_text() == "mine"
    assert "there is no file" in message(model_def="smal.custom_model")
    assert "(did you mean small?)" in message(model_def="smal.custom_model")
    assert "(did you mean custom_model?)" in message(model_def="small.custom_modle")
    assert "is not the output of a training job" in message(restore_from=tmp_path / "full")
    said = refused(tmp_path, training_data=clicks)
    assert "Error: --model-def is required. The model: file.function" in said
    assert "--training-data is required by shoal train" in refused(
        tmp_path, model_def="small.custom_model"
    )


@pytest.fixture(scope="module")
def broken(session_folder, clicks):
    """What came of the jobs of zoo/broken.py, by the way in which they break."""

    def one(way):
        return run(
            "train",
            session_folder,
            f"broken-{way}",
            environment={"BREAK": way},
            training_data=clicks,
            output=session_folder / f"broken-{way}-out",
            **MODELS,
            **BROKEN,
        )

    ways = ["column", "nan", "loss", "export"]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(ways, pool.map(one, ways), strict=True))


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("column", ["column 'usr'", "--training-data", "feed() of broken.py", "user, item, label"]),
        ("nan", ["the loss is nan", "clicks.csv, record 137 (row 138, at byte", "learning rate"]),
    ],
)
def test_a_user_s_mistake_that_a_worker_finds_is_one_line(broken, way, words):
    ended = broken[way]
    assert ended.code == 2, ended.out + ended.err
    (line,) = ended.err.splitlines()
    for word in ("Error: ", *words):
        assert word in line
    assert ended.result["state"] == "failed"
    assert ended.result["workers"] == {"starts": 1, "deaths": 0}
    assert "Traceback" not in ended.out


@pytest.mark.parametrize("model", ["small.custom_model", "passing.custom_model"])
def test_a_column_missing_from_the_validation_data_is_told_before_training(tmp_path, clicks, model):
    """By feed's own lookup, or where feed passes all columns on and the model lacks a feature."""
    validation = tmp_path / "validation.csv"
    validation.write_text("user,itme,label\n1,2,0.0\n")
    (tmp_path / "passing.py").write_text(
        (ZOO / "small.py").read_text()
        + "\n\ndef feed(dataset, mode, metadata):\n"
        + "    return dataset.map(lambda r: ({k: r[k] for k in r if k != 'label'}, r['label']))\n"
    )
    ended = run(
        "train",
        tmp_path,
        "blind",
        model_def=model,
        model_zoo=ZOO if model.startswith("small") else tmp_path,
        training_data=clicks,
        validation_data=validation,
        output=tmp_path / "out",
    )
    assert ended.code == 2, ended.out + ended.err
    (line,) = ended.err.splitlines()
    for word in ("--validation-data", str(validation), "'item' (did you mean itme?)"):
        assert word in line
    assert "warning: --validation-data: " in ended.out
    assert "has no column 'item' (did you mean itme?), which --training-data has" in ended.out
    assert "training:" not in ended.out
    assert not ended.ledger["trained_once"]


@pytest.mark.parametrize(
    ("way", "words", "frame"),
    [
        ("loss", ["training step of broken.py raised ZeroDivisionError: no loss today"], "in loss"),
    ],
)
def test_an_error_in_the_user_s_code_is_shown_whole(broken, way, words, frame):
    ended = broken[way]
    assert ended.code == 1, ended.out + ended.err
    *trace, line = ended.err.splitlines()
    assert trace[0] == "Your code, the last call last:"
    assert trace[-1].startswith("The whole traceback: ")
    assert not any("site-packages" in each for each in trace)
    assert line.removeprefix("Error: ") not in ended.out
    assert any(frame in each for each in trace)
    for word in ("Error: ", *words):
        assert word in line
    assert ended.result["workers"] == {"starts": 1, "deaths": 0}
    assert ended.ledger["trained_once"] == 0


def test_a_model_that_has_no_form_of_an_export_is_refused_by_its_layer(broken):
    ended = broken["export"]
    assert ended.code != 0, ended.out + ended.err
    (line,) = ended.err.splitlines()
    assert line.startswith("Error: the model of broken.py cannot be exported. No model.keras: ")
    assert line.count("layer 'unsaveable' (Unsaveable)") == 2
    assert "give --export none" in line
    assert ended.ledger["trained_once"] == 0


def test_a_feed_that_raises_names_the_record_to_the_python_api(tmp_path, clicks, monkeypatch):
    monkeypatch.setenv("SHOAL_TEST_BREAK", "feed")
    monkeypatch.chdir(tmp_path)
    fields = {"model_zoo": ZOO, "training_data": clicks, "job_name": "cursed"} | BROKEN
    with (tmp_path / "shown").open("w") as stream, pytest.raises(shoal.JobFailedError) as caught:
        shoal.train(display=LineDisplay(stream), **fields)
    message, _, trace = str(caught.value).partition("\n")
    assert "feed() of broken.py on" in message
    assert "clicks.csv, record 137 raised" in message
    assert "clicks.csv, record 137 (row 138, at byte" in message
    assert trace.startswith("Traceback")
    assert "record is cursed" in trace
    result = caught.value.result
    assert (result.state, result.exit_code) == ("failed", 1)
    assert (result.failure["range"]["start"], result.failure["range"]["end"]) == (137, 138)
    ledger = dict(result.ledger)
    assert ledger.pop("total") == sum(ledger.values())
    assert ledger["failed"] == 1
    job = tmp_path / "shoal-jobs" / "cursed"
    assert job_processes(job / "job.json") == []
    assert json.loads((job / "result.json").read_text())["state"] == "failed"

    with pytest.raises(shoal.UserError, match=r"job cursed has run before .* overwrite=True"):
        shoal.train(display=LineDisplay(sys.stdout), **fields)
    assert (job / "result.json").exists()


def test_an_export_that_is_damaged_is_refused(trained, session_folder, clicks, tmp_path):
    """It passes the first look at it, which is only for the manifest."""
    (tmp_path / "export").mkdir()
    source = session_folder / "trained-out"
    (tmp_path / "export" / "manifest.json").write_text((source / "manifest.json").read_text())
    (tmp_path / "export" / "dense.parquet").write_bytes(b"PAR1 and no more")
    ended = run(
        "evaluate",
        tmp_path,
        "damaged",
        model_def="small.custom_model",
        validation_data=clicks,
        restore_from=tmp_path / "export",
    )
    assert ended.code == 2, ended.out + ended.err
    (line,) = ended.err.splitlines()
    assert f"--restore-from: {tmp_path}/export/dense.parquet: damaged" in line
