"""Each bad input is one clear line and exit code 2, before anything is started."""

import fcntl
import io
import json
import os

import pytest
from click.testing import CliRunner

from shoal.base.disk.job_folder import JobFolder
from shoal.cli.main import main
from shoal.client.run import local as client
from shoal.client.run.beginning import with_beginning
from shoal.client.run.checks import check_inputs
from shoal.client.show.display import LineDisplay
from shoal.config.flags import flag
from shoal.config.job import JobConfig
from shoal.config.options import GROUPS
from shoal.errors import UserError


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch):
    def refuse(path):
        raise AssertionError("a master was started")

    monkeypatch.setattr(client, "master_command", refuse)


def run(*arguments):
    result = CliRunner().invoke(main, arguments, prog_name="shoal")
    assert not result.stdout or "Usage" in result.stdout
    assert "Traceback" not in result.output
    return result.exit_code, result.stderr.strip()


COMMAND = ["train", "--model-def", "model.custom_model", "--training-data", "train.csv"]


def train(*more, model_def="model.custom_model", data="train.csv"):
    return run("train", "--model-def", model_def, "--training-data", data, *more)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "1.5"], "Error: --epochs must be a whole number, not '1.5'"),
        (["--metrics-seconds", "x"], "Error: --metrics-seconds must be a number, not 'x'"),
        (["--epochs", "0"], "--epochs must be at least 1"),
        (["--log_level", "loud"], "--log-level must be one of debug"),
        (["--wire-dtype", "int8"], "--wire-dtype must be one of auto, float32, bfloat16"),
        (["--row-cache", "-1"], "such as 64 or 64:8, not '-1'"),
        (["--num-wrokers", "2"], "--workers"),
        (["--job-name", "a b"], "--job-name must consist of letters"),
        (["--validation-data", "none.csv"], "--validation-data: there is no file"),
        (["--model-zoo", "nowhere"], "--model-zoo: there is no folder"),
        (["--restore-from", "nowhere"], "--restore-from: there is no folder .* nowhere"),
        (["--restore-from", "modle.py"], "modle.py (did you mean model.py?)"),
        (["--restore-from", "."], "--restore-from: .* no manifest.json"),
    ],
)
def test_a_bad_flag_is_named(project, arguments, message):
    code, error = train(*arguments)
    assert code == 2
    assert message.split(" .* ")[0] in error
    assert message.split(" .* ")[-1] in error
    assert not (project / "shoal-jobs").exists()


def test_required_flags_are_asked_for(project):
    # With --resume no other flag is required; that ends with the command, however it ends.
    assert run("train", "--resume", "nothing-here")[0] == 2
    main.commands["train"].make_context("train", ["--resume", "nothing-here"])
    assert run("train") == (
        2,
        "Error: --model-def is required. The model: file.function or file.ClassName; see shoal "
        "train --help",
    )
    assert "--training-data is required" in run("train", "--model-def", "model.custom_model")[1]
    code, error = run("predict", "--model-def", "model.f", "--prediction-data", "train.csv")
    assert (code, "--restore-from is required" in error) == (2, True)


def test_the_word_help_is_the_flag():
    assert CliRunner().invoke(main, ["train", "help"]).output.startswith("Usage: main train [OP")


def test_a_name_in_another_encoding_is_refused_with_what_to_do(project):
    name = os.fsdecode(b"caf\xe9.csv")
    (project / name).write_text("user,item\n1,2\n")
    message = "Error: --training-data: the name '{}caf\\udce9.csv' is not in UTF-8: set PYTHONUTF8"
    for data, folder in ((name, ""), (str(project), f"{project}/")):
        code, error = train(data=data)
        assert (code, error.startswith(message.format(folder))) == (2, True), error


def test_a_typo_in_the_model_gets_a_suggestion(project):
    (project / "models").mkdir()
    (project / "models" / "deep.py").write_text("class Deep: ...\n")
    code, error = train(model_def="modle.custom_model")
    assert code == 2
    assert "did you mean model?" in error
    assert "did you mean custom_model?" in train(model_def="model.custom_modle")[1]
    assert "did you mean models.deep or" in train(model_def="models/deeq.Deep")[1]
    assert "defines no Shallow" in train(model_def="models.deep.Shallow")[1]


def test_several_files_are_named_by_one_value(project):
    code, error = train("--training_data=other.csv")
    assert (code, "--training-data is given twice" in error) == (2, True)
    code, error = train("model.py", data="model.py")
    assert (code, "unexpected extra argument" in error) == (2, True)
    assert "put a pattern of files into quotes" in error
    code, error = train("nothing")
    assert (code, "quotes" in error) == (2, False)


@pytest.mark.parametrize("name", ["model.py", "model.py.custom_model"])
def test_a_file_in_place_of_a_function_is_told(project, name):
    code, error = train(model_def=name)
    assert code == 2
    assert f"--model-def must be file.function, such as model.custom_model, not '{name}'" in error


def test_a_path_of_a_model_is_told_where_it_goes(project):
    code, error = train(model_def=f"{project}/model.custom_model")
    assert code == 2
    assert "must be a path below the folder --model-zoo" in error
    assert f"--model-zoo {project} --model-def model.custom_model" in error


def test_a_file_with_the_name_of_a_module_of_python_is_refused(project):
    (project / "model.py").rename(project / "random.py")
    code, error = train(model_def="random.custom_model")
    assert code == 2
    assert "/random.py in the place of Python's own module random: rename the file" in error


def test_a_package_in_place_of_a_file_is_told(project):
    (project / "package").mkdir()
    code, error = train(model_def="package.custom_model")
    assert code == 2
    assert "/package is a folder: name the file in it that has the model" in error


def test_a_syntax_error_is_shown_with_its_line(project):
    (project / "model.py").write_text("def custom_model():\n    return (\n")
    code, error = train()
    assert code == 2
    assert "model.py is not valid Python: line 2" in error


def test_data_are_opened_before_the_start(project):
    (project / "bad.parquet").write_bytes(b"nothing")
    code, error = train(data="bad.parquet")
    assert code == 2
    assert error.startswith("Error: --training-data: ")
    assert "bad.parquet: cannot be read as Parquet" in error


def test_data_that_are_likely_wrong_are_told_of_at_the_start(project):
    values = [*range(30), "many", *range(30)]
    (project / "odd.csv").write_text("a,label\n" + "".join(f"{a},0\n" for a in values))
    config = JobConfig(model_def="model.custom_model", training_data="odd.csv").resolved()
    (told,) = check_inputs(config)
    assert told.startswith(
        f"--training-data: {project}/odd.csv: column 'a' is read as text: row 31"
    )
    shown = io.StringIO()
    with pytest.raises(AssertionError, match="a master was started"):
        client.run_job(config, LineDisplay(shown))
    assert f" warning: {told}\n" in shown.getvalue()


def test_an_output_that_is_not_empty_is_kept(project):
    (project / "out").mkdir()
    (project / "out" / "precious").touch()
    code, error = train("--output", "out")
    assert (code, "is not empty; choose another" in error) == (2, True)
    code, error = train("--output", "out", "--overwrite")
    assert (code, "shoal did not write its content" in error) == (2, True)
    assert (project / "out" / "precious").exists()
    # Others write files of that name too.
    (project / "out" / "manifest.json").write_text('{"format": "of a web page"}')
    code, error = train("--output", "out", "--overwrite")
    assert (code, "shoal did not write its content" in error) == (2, True)
    assert (project / "out" / "precious").exists()
    assert "is a file" in train("--output", "train.csv")[1]


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("train.csv/out", "Not a directory"),
        ("/proc/out", "cannot write /proc/out: No such file or directory; name a place that"),
        ("/proc", "where a volume is mounted"),
        ("nosuch://bucket/out", "Protocol not known"),
    ],
)
def test_an_output_that_cannot_be_written_is_found_before_training(project, output, words):
    code, error = train("--output", output)
    assert (code, "--output: " in error, words in error) == (2, True, True), error
    assert not (project / "shoal-jobs").exists()


def test_an_export_behind_a_url_is_restored_from(project):
    given = {"model_def": "model.custom_model", "training_data": "train.csv"}
    (project / "out").mkdir()
    config = JobConfig(**given, restore_from=f"file://{project}/out")
    with pytest.raises(UserError, match="is not the output of a training job"):
        with_beginning(config)
    (project / "out" / "manifest.json").write_text('{"format": "shoal-export-3"}')
    assert with_beginning(config) == config


def test_overwriting_never_takes_what_the_job_reads(project):
    (project / "out").mkdir()
    (project / "out" / "manifest.json").write_text('{"format": "shoal-export-1"}')
    (project / "out" / "data.csv").write_text("a\n1\n")
    code, error = train("--output", "out", "--overwrite", data="out/data.csv")
    assert (code, "would remove" in error, "--training-data" in error) == (2, True, True)
    assert (project / "out" / "data.csv").exists()


def test_a_folder_that_is_no_job_is_kept(project):
    (project / "work").mkdir()
    (project / "work" / "precious").touch()
    for more in ((), ("--overwrite",)):
        code, error = train("--job-dir", "work", *more)
        assert (code, "not the folder of a job" in error) == (2, True)
    assert (project / "work" / "precious").exists()


def test_a_job_with_progress_is_told_to_be_resumed(project):
    job = project / "shoal-jobs" / "model"
    job.mkdir(parents=True)
    config = JobConfig(model_def="model.custom_model", training_data="train.csv").resolved()
    (job / "job.json").write_text(config.to_json())
    assert "--resume" not in train()[1], "there is no journal"
    JobFolder(job).journal.touch()
    for result in ('{"state": "stopped"}', '{"state": "failed", "records": 7}', None):
        (job / "result.json").unlink(missing_ok=True)
        if result:
            (job / "result.json").write_text(result)
        error = train()[1]
        assert "To go on with it: shoal train --resume shoal-jobs/model." in error
        assert error.index("--resume") < error.index("--job-name") < error.index("--overwrite")
    (job / "result.json").write_text('{"state": "succeeded"}')
    assert "--resume" not in train()[1]


def test_a_resumption_whose_inputs_are_not_there_changes_nothing(project):
    job = JobFolder(project / "shoal-jobs" / "model")
    job.journal.mkdir(parents=True)
    config = JobConfig(model_def="model.custom_model", training_data="train.csv").resolved()
    before = {job.config: config.to_json(), job.result: '{"state": "failed", "records": 7}'}
    for path, text in before.items():
        path.write_text(text)
    (project / "train.csv").rename(project / "away.csv")
    code, error = run("train", "--resume", str(job.path), "--workers", "3")
    assert (code, "--training-data: there is no file" in error) == (2, True)
    assert {path: path.read_text() for path in before} == before


def test_an_ended_job_is_kept_unless_overwritten(project):
    job = project / "shoal-jobs" / "model"
    job.mkdir(parents=True)
    (job / "job.json").write_text("{}")
    code, error = train()
    assert (code, "job model has run before" in error, "--overwrite" in error) == (2, True, True)
    os.chdir(job)
    code, error = run(
        *("train", "--model-zoo", str(project), "--model-def", "model.custom_model"),
        *("--training-data", str(project / "train.csv"), "--job-dir", str(job), "--overwrite"),
    )
    assert (code, "the working directory" in error) == (2, True)


def test_a_job_that_failed_before_it_did_anything_makes_room(project):
    job = project / "shoal-jobs" / "model"
    job.mkdir(parents=True)
    (job / "job.json").write_text("{}")
    nothing = {
        "state": "failed",
        "ledger": {"total": 9, "trained_once": 0, "repeated": 0, "failed": 0, "pending": 9},
        "records": 0,
        "checkpoints": {"taken": 0},
    }
    something = [
        {"state": "stopped"},
        {"ledger": {"total": 9, "trained_once": 1, "repeated": 0, "failed": 0, "pending": 8}},
        {"records": 1},
        {"checkpoints": {"taken": 1}},
        {"ledger": None},
    ]
    for each in something:
        (job / "result.json").write_text(json.dumps(nothing | each))
        assert "has run before" in train()[1]
    (job / "result.json").write_text(json.dumps(nothing))
    with pytest.raises(AssertionError, match="a master was started"):
        CliRunner().invoke(main, COMMAND, catch_exceptions=False)
    assert not (job / "result.json").exists()


@pytest.mark.parametrize("locked", ["lock", "."], ids=["by the master", "by a client"])
def test_a_running_job_is_not_started_twice(project, locked):
    job = project / "shoal-jobs" / "model"
    job.mkdir(parents=True)
    (job / "job.json").write_text("{}")
    (job / "lock").touch()
    descriptor = os.open(job / locked, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        code, error = train("--overwrite")
    finally:
        os.close(descriptor)
    assert (code, "job model is already running" in error) == (2, True)


def test_dashes_and_underscores_are_alike(project):
    for spelling in ("--batch-size", "--batch_size"):
        assert "--batch-size must be at least 1, not 0" in train(spelling, "0")[1]


def test_a_job_may_be_named_as_its_module(project):
    with pytest.raises(AssertionError, match="a master was started"):
        CliRunner().invoke(main, [*COMMAND, "--job-name", "wide_deep"], catch_exceptions=False)
    assert (project / "shoal-jobs" / "wide_deep").is_dir()
    given = {"model_def": "m.f", "training_data": "/data", "job_name": "wide_deep"}
    assert JobConfig(**given).resolved().job_name == "wide_deep"
    assert JobConfig(**given, image="shoal:1").resolved().job_name == "wide-deep"


def test_every_field_of_a_command_has_its_flag():
    from dataclasses import fields

    for command in ("train", "evaluate", "predict"):
        flags = {name for option in main.commands[command].params for name in option.opts}
        expected = {
            "--" + field.name.replace("_", "-")
            for field in fields(JobConfig)
            if command in field.metadata.get("commands", ())
        }
        own = {"--resume"} if command == "train" else set()
        assert flags == expected | {"--detach", "--yaml", "--events", "--dashboard"} | own


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--durability", "chekpoint"], "not 'chekpoint' (did you mean checkpoint?)"),
        (["--wire-dtype", "Float16"], "not 'Float16' (did you mean float16"),
        (["--data-format", "parket"], "recordio, lines, jsonlines, not 'parket' (did you mean par"),
        (["--step-timeout-seconds", "inf"], "--step-timeout-seconds must be a finite number"),
        (["--checkpoint-seconds", "nan"], "--checkpoint-seconds must be a finite number, not nan"),
        (["--in-order"], "shoal train has no flag --in-order. It is a flag of shoal predict"),
        (["--no-open"], "shoal train has no flag --no-open. It is a flag of shoal dashboard"),
        (["--num_wrokers=2"], "--workers"),
    ],
)
def test_a_bad_value_gets_what_is_allowed_and_the_near_one(project, arguments, message):
    code, error = train(*arguments)
    assert code == 2
    assert message in error


def test_no_flag_is_guessed_where_none_is_near(project):
    _, error = train("--no-opne")  # by its dashes, --no-open is as near as most
    assert error.endswith("Error: No such option '--no-opne'.")


@pytest.mark.parametrize("command", ["train", "chaos", "evaluate", "predict", "check", "export"])
def test_help_shows_each_flag_in_its_group(command):
    lines = CliRunner().invoke(main, [command, "--help"], prog_name="shoal").output.splitlines()
    expected = {flag(field.name): group.title for group in GROUPS for field in group.fields}
    title, found = "", {}
    for line in lines:
        if line.endswith(":") and not line.startswith(" "):
            title = line[:-1]
        elif line.startswith("  --"):
            found[line.split()[0]] = title
    of_job = found.keys() & expected.keys()
    assert len(of_job) > 5
    assert {name: found[name] for name in of_job} == {name: expected[name] for name in of_job}


@pytest.mark.parametrize(
    "command",
    [
        ("train", "--resume", "clicks"),
        ("audit", "clicks"),
        ("checkpoint", "verify", "clicks"),
        ("export", "clicks", "--output", "model"),
    ],
)
def test_a_jobs_name_where_its_folder_is_wanted_is_told_with_the_folder(
    tmp_path, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)
    assert "did you mean" not in run(*command)[1]
    (tmp_path / "shoal-jobs" / "clicks").mkdir(parents=True)
    (tmp_path / "shoal-jobs" / "clicks" / "job.json").write_text("{}")
    code, said = run(*command)
    assert code == 2
    assert said.endswith("(did you mean shoal-jobs/clicks?)")


def test_the_list_of_commands_says_of_each_in_a_whole_sentence_what_it_does():
    told = CliRunner().invoke(main, ["--help"], terminal_width=80).stdout
    assert "..." not in told.partition("Commands:")[2]
    assert "Train a model, evaluate it and export it." in told


def test_the_help_of_a_command_lists_flags_and_no_arguments():
    told = CliRunner().invoke(main, ["export", "--help"]).stdout
    assert told.partition("Options:")[2].split()[0] == "--number"
