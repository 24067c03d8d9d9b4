"""The README and the pages of the guide run as they are written, on less data.

The guide's pages run one after the other in one folder, as somebody runs them who reads the guide
from its first page on: each command finds what those before it have left there. Commands for a
cluster are those of test_commands.py, two of chaos.md those of tests/jobs/test_count.py, the
recipes of moving-from-elasticdl.md those of tests/elasticdl.
"""

import contextlib
import importlib
import io
import json
import os
import random
import re
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from click.testing import CliRunner

from shoal.cli.main import main
from shoal.client.run.checks import check_inputs
from shoal.config.job import CHECK_FLAGS, JobConfig
from shoal.data import as_columns, open_reader
from shoal.worker.inspect import check
from tests.docs.pages import GUIDE, README, ROOT, blocks, commands, with_pages, words
from tests.jobs.running import completed

pytestmark = [pytest.mark.job, with_pages]

GATED = ROOT / "docs/guide/every-day.md"
PAGES = [README, *GUIDE]
JOBS = ("train", "evaluate", "predict", "sql")

WITHOUT_SHOAL = """
import runpy, sys
sys.modules["shoal"] = None  # so that an import of it fails
runpy.run_path(sys.argv[1], run_name="__main__")
"""

ONLY_CHECKED = ("tower.TwoTowers", "moved.custom_model")
"""Models that `shoal check` tries on the command's data, to save the time of a whole job."""

OF_OTHERS = ("clicks_torch.Clicks", "--engine")
"""Parts of commands about models that other processes look at: this one has TensorFlow."""

SERVING = ("serve.py", "vectors.py", "find.py", "plain.py", "tables.py")
"""Files that need no shoal, as the pages say."""

NOT_RUN = {
    "python3 -m venv": "the tests have an environment",
    "bin/activate": "the tests run in theirs",
    "pip install": "the tests have what it installs",
    "make ": "they are what CI runs",
    "--image": "test_commands.py makes the objects of its job",
    "shoal zoo push": "there is no registry",
    "python -m shoal.model_zoo": "it fetches the data; there are other ratings here",
    "cp -r tower/saved_model /models": "it writes outside of the folder",
    "docker run": "tests need no Docker",
    "docker build": "tests/kubernetes/image.py builds it",
    "kubectl ": "tests/kubernetes/test_serving.py asks a cluster",
    "gcloud ": "it is of Google's",
    "curl ": "it asks the container",
    "--training-data 's3://": "there is no bucket",
    "--training-data 'postgresql://": "there is no database server",
    "kafka://": "there is no broker: tests/jobs/test_kafka.py has one",
    "export CLICKS_PASSWORD": "it is for that server",
    "shoal top clicks": "its job must be running: tests/jobs/test_top.py",
    "shoal profile clicks": "its job must be running: tests/jobs/test_profile.py",
    "shoal stacks clicks": "its job must be running: tests/jobs/test_stacks.py",
    "shoal follow": "it goes on until it is told to end: tests/deltas/test_to_*.py",
    "python ask.py": "it asks a server: tests/recipes",
    "shoal serve": "it goes on until it is told to end: tests/serve",
    "shoal dashboard": "it goes on until it is interrupted: tests/tools/dashboard",
    "--dashboard 8050": "the port may be taken: tests/tools/dashboard has any free one",
    "shoal rebalance clicks": "its job must be running: tests/jobs/test_scale_servers.py",
    "shoal scale clicks": "its job must be running: tests/jobs/test_commands.py",
    "shoal stop clicks": "its job must be running: tests/jobs/test_commands.py",
}
"""A part of each command of a page that runs here and that is itself not run, and why."""


def finished(line, folder):
    """A process that must succeed; returns what it printed."""
    if line[:3] == [sys.executable, "-m", "shoal"]:
        done = completed(line, folder, os.environ)
    else:
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


def checked(command, given, folder):
    """`shoal check` with the flags of a command, in this process, which has TensorFlow already.

    Returns what it prints.
    """
    flags = main.commands[command].make_context(command, given).params
    config = JobConfig(command="check", **{name: flags[name] for name in CHECK_FLAGS}).resolved()
    check_inputs(config)
    for path in folder.glob("*.py"):  # another test's module may have its name
        sys.modules.pop(path.stem, None)
    before = set(sys.modules)
    try:
        report = check.inspect(replace(config, job_dir=str(folder / "checks")))
    finally:
        for name in set(sys.modules) - before:  # a module of another page has the same name
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                del sys.modules[name]
    assert report.faults == []
    return "\n".join(report.lines)


def typed(command, folder):
    """Run a command of a page; returns what it prints, None if it is one of NOT_RUN."""
    if any(part in command for part in NOT_RUN):
        return None
    program, *rest = words(command)
    if program == "python":
        code = ("-c", WITHOUT_SHOAL) if rest[0] in SERVING else ()
        return finished([sys.executable, *code, *rest], folder)
    if program in ("ls", "mv"):
        return finished(["sh", "-c", command], folder)
    assert program == "shoal", command
    of_others = any(part in command for part in OF_OTHERS)
    in_process = rest[0] == "check" and not of_others
    if in_process or any(part in command for part in ONLY_CHECKED):
        return checked(rest[0], rest[1:], folder)
    if rest[0] in JOBS or of_others:
        return finished([sys.executable, "-m", "shoal", *rest], folder)
    done = CliRunner().invoke(main, rest)
    assert done.exit_code == 0, f"{command}\n{done.output}"
    return done.output


def run(page, folder, changes=()):
    """Run all of a page in a folder: named files are saved, other Python and commands are run.

    changes: pairs of a text of the page and what takes its place. Returns what each command, or the
    place of a block without a name, has printed.
    """
    printed, saved, given = {}, [], ""
    for block in blocks(page):
        text = block.text
        for old, new in changes:
            text = text.replace(old, new)
        if block.file:
            (folder / block.file).write_text(text)
            saved.append(block.file)
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(text, block.place, "exec"), {"__name__": "block"})
            printed[block.place] = out.getvalue()
        elif block.language == "sh":
            for command in block.commands:
                printed[command] = typed(command, folder)
                given += f" {command}"
    unused = [name for name in saved if not re.search(rf" {name}| {name[:-3]}\.", given)]
    assert set(unused) <= {"parts.py"}  # which two others import
    return printed


@contextlib.contextmanager
def working_in(folder):
    """The folder is the working directory, and Python imports from it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        yield folder


@pytest.fixture
def here(first_job):
    """The folder of the guide's reader, entered."""
    with working_in(first_job[0]) as folder:
        yield folder


@pytest.fixture(scope="module")
def first_job(tmp_path_factory):
    """The folder of the guide's reader after the first page, and what its commands printed."""
    with working_in(tmp_path_factory.mktemp("guide")) as folder:
        fewer = (("40_000", "8_000"), ("10_000", "2_000"))
        return folder, run("docs/guide/first-job.md", folder, fewer)


def one(printed, part):
    """What the only command that contains `part` printed."""
    (found,) = (text for command, text in printed.items() if part in command)
    return found


def write_ratings(path, records, seed):
    """Ratings in the form of shoal.model_zoo.movielens: people like films of their own kind."""
    draw = random.Random(seed)
    rated = [(draw.randrange(50), draw.randrange(30)) for _ in range(records)]
    columns = {
        "user": pa.array([user for user, _ in rated], pa.int64()),
        "item": pa.array([item for _, item in rated], pa.int64()),
        "label": pa.array([float(user % 2 == item % 2) for user, item in rated], pa.float32()),
    }
    pq.write_table(pa.table(columns), path, row_group_size=1000)


def write_people(folder):
    """People in the form of shoal.model_zoo.census: who is rich by age and occupation."""
    draw = random.Random(3)
    folder.mkdir()
    for name, records in (("train", 4000), ("validation", 500)):
        rows = ["age,education,occupation,hours_per_week,income"]
        for _ in range(records):
            age, hours = draw.randrange(18, 80), draw.randrange(10, 60)
            school, job = draw.choice(["HS-grad", "Masters"]), draw.choice(["Sales", "Exec", "?"])
            income = int((job == "Exec") + (school == "Masters") + (age > 45) >= 2)
            rows.append(f"{age},{school},{job},{hours},{income}")
        (folder / f"{name}.csv").write_text("\n".join([*rows, ""]))


def test_the_readmes_model_is_trained_by_its_command_and_from_python(tmp_path):
    (tmp_path / "ratings").mkdir()
    write_ratings(tmp_path / "ratings" / "train.parquet", 8000, 1)
    write_ratings(tmp_path / "ratings" / "validation.parquet", 1000, 2)
    write_people(tmp_path / "census")
    with working_in(tmp_path):
        printed = run(README, tmp_path)
    told = dict(re.findall(r"^  (\S+(?: \S+)*)  +(.+)$", one(printed, "--output trained"), re.M))
    (report,) = (block.text for block in blocks(README) if not block.language)
    assert set(re.findall(r"^  (\S+(?: \S+)*)  +", report, re.MULTILINE)) <= told.keys()
    assert told["state"] == "succeeded"
    assert float(told["auc"]) > 0.8
    assert (tmp_path / "trained" / "model.keras").exists()
    assert one(printed, README).splitlines()[-1].startswith("succeeded 0.")
    people, share = re.search(r"│ +(\d+) │ +(\S+) │", one(printed, "shoal sql")).groups()
    assert int(people) == 500
    assert 0.1 < float(share) < 0.9


def test_the_first_job_runs_from_its_data_to_its_served_model(first_job):
    folder, printed = first_job
    assert "predict this batch as the model does" in one(printed, "shoal check")
    assert sorted(path.name for path in (folder / "predicted").glob("*.parquet"))
    assert len(one(printed, "serve.py").strip("[] \n").split()) == 2
    assert "\nsucceeded 0." in one(printed, "first-job.md")


def test_the_page_of_python(tmp_path):
    with working_in(tmp_path):
        printed = run("docs/guide/python.md", tmp_path)
        assert Path("metrics.png").read_bytes().startswith(b"\x89PNG")
    trained, importance = (text for place, text in printed.items() if "python.md" in place)
    *answers, told = trained.splitlines()[-3:]
    # Both users rate the item as the sum of the numbers says.
    assert [round(float(line.strip("[ ]"))) for line in answers] == [0, 1]
    assert told.startswith("succeeded (2, 8) ")
    assert float(told.split()[-1]) > 0.9
    assert importance.splitlines()[0].split() == ["column", "metric", "drop", "stddev"]
    *last, drop, stddev = importance.splitlines()[-1].split()
    assert last == ["2", "weekday", "auc"]
    assert float(drop) == float(stddev) == 0


def test_a_typing_error_is_shown_as_the_first_page_shows_it(here):
    (block,) = (each for each in blocks("docs/guide/first-job.md") if each.text.startswith("$ "))
    command, shown = block.session
    done = CliRunner().invoke(main, words(command)[1:])
    assert done.exit_code == 2
    assert re.fullmatch(re.escape(shown).replace(r"\.\.\.", ".*"), done.output)


def test_the_page_of_models(here):
    # A user views the items of its own kind, of which there are four.
    draw = random.Random(4)
    rows = [(user, 4 * draw.randrange(10) + user % 4) for user in range(40) for _ in range(400)]
    draw.shuffle(rows)
    lines = [f"{user},{item}" for user, item in rows]
    Path("views.csv").write_text("\n".join(["user,item", *lines, ""]))
    pages = ("models", "tables", "export", "predictions")
    printed = {}
    for page in pages:
        printed |= run(f"docs/guide/{page}.md", here)
    assert "the export has the SavedModel, and no model.keras" in one(printed, "tower.TwoTowers")
    assert "admit_after=3: an id gets a row at its push number 3" in one(
        printed, "admit_after=3 --table"
    )
    sweeps = one(printed, "--event-time")
    assert "expire_after=14d: an id is removed 14d of event time after its last push" in sweeps
    assert "max_rows=150: 150 rows at most" in sweeps
    assert len(one(printed, "vectors.py").strip("[] \n").split()) == 2
    assert one(printed, "tables.py").splitlines() == ["items (2000, 8)", "users (2000, 8)"]
    with sqlite3.connect("predictions.sqlite") as database:
        places = database.execute("SELECT position FROM clicks ORDER BY position").fetchall()
    assert places == [(place,) for place in range(2000)]
    found = [int(item) for item in one(printed, "find.py").strip("[] \n").split()]
    assert len(found) == 10
    assert {item % 4 for item in found} == {3}


def test_the_page_of_data(here):
    table = csv.read_csv("clicks.csv").slice(0, 600)
    Path("clicks").mkdir()
    for day in (1, 2):
        pq.write_table(table, f"clicks/2026-{day}.parquet")
    records = table.to_pylist()
    with tf.io.TFRecordWriter("clicks.tfrecord") as file:
        for record in records:
            feature = {
                name: tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
                for name, value in record.items()
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            file.write(example.SerializeToString())
    np.array([tuple(record.values()) for record in records], "<i8").tofile("clicks.bin")
    with sqlite3.connect("shop.db") as database:
        columns = ", ".join(f"{name} BIGINT" for name in records[0])
        database.execute(f"CREATE TABLE clicks (id INTEGER PRIMARY KEY, {columns})")
        rows = [tuple(record.values()) for record in records]
        database.executemany("INSERT INTO clicks (user, item, clicked) VALUES (?, ?, ?)", rows)
    printed = run("docs/guide/data.md", here)
    assert sum("One batch of 256 records" in (text or "") for text in printed.values()) == 10
    assert "state             succeeded" in one(printed, "--index-dir")


def test_the_page_of_serving(here):
    asks = '\nrows = Lookups("http://127.0.0.1:8501")\nrows.lookup("user_table", [7, 8])\n'
    printed = run("docs/guide/serve.md", here, [(asks, "")])  # tests/serve has its server
    assert "succeeded" in one(printed, "--publish live/")
    (followed,) = (text for text in printed.values() if text and "(2, 8)" in text)
    assert re.fullmatch(r"\[0\.\d+\]\n\(2, 8\)\n\d+ \d+\.\d+\n", followed)


def test_the_page_of_training_every_day(here):
    Path("days").mkdir()
    Path("days/monday.csv").write_text(Path("clicks.csv").read_text())
    printed = run("docs/guide/every-day.md", here)
    assert "the job continues from" in one(printed, "--job-name second")
    assert "1 of 2 sources of --training-data are new" in one(printed, "--job-dir runs/tuesday")
    assert "first.auc" in one(printed, "--evaluate-first")
    assert "no more data is looked for (--until-idle)" in one(printed, "--arriving 1")
    assert Path("runs/latest").readlink() == Path("stream")
    # The same command, as a shell runs it, on a day whose labels have not come yet.
    loop = re.search(r"^shoal analyze [^`]*--against.*?good.json$", GATED.read_text(), re.M | re.S)
    rows = Path("later.csv").read_text().splitlines()
    Path("days/thursday.csv").write_text(
        "\n".join([rows[0], *(re.sub("[^,]*$", "0", row) for row in rows[1:])]) + "\n"
    )
    command = loop[0].replace("wednesday", "thursday")
    assert command.count(" && ") == 2
    command = command.replace("shoal ", f"{sys.executable} -m shoal ")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert "it has one value only, 0" in done.stderr
    assert Path("runs/latest").readlink() == Path("stream")
    assert not Path("runs/thursday").exists()
    assert Path("thursday.json").exists()


def test_the_page_of_preprocessing(here):
    draw = random.Random(2)
    cities = ["Ulm", "Bonn", "Köln"]
    rows = [
        f"{draw.randrange(18, 90)},{draw.lognormvariate(7, 1):.2f},{draw.choice(cities)},{i % 2}"
        for i in range(2000)
    ]
    Path("people.csv").write_text("\n".join(["age,income,city,buys", *rows, "40,1.0,Rom,1\n"]))
    printed = run("docs/guide/preprocessing.md", here)
    assert "state             succeeded" in one(printed, "shoal train")
    measured = importlib.import_module("measured")
    reader = open_reader("people.csv", "--data")
    (source,) = reader.sources()
    columns = as_columns(next(iter(reader.read(source.name, 0, source.records))))
    features, _ = measured.feed_batch(
        {name: tf.constant(column) for name, column in columns.items()}, "training", None
    )
    # Ten bins of about as many people, incomes around 0, and a city that is too rare.
    people = np.bincount(features["age"].numpy(), minlength=10)
    assert people.size == 10
    assert people.min() > 120
    income = features["income"].numpy()
    assert (income.mean(), income.std()) == (pytest.approx(0, abs=1e-4), pytest.approx(1, rel=1e-4))
    assert sorted(measured.cities) == ["Bonn", "Köln", "Ulm"]
    assert np.bincount(features["city"].numpy())[3:].tolist() == [1]


def test_a_script_of_keras_and_its_module(here):
    printed = run("docs/guide/moving-from-keras.md", here)
    assert "val_auc" in one(printed, "plain.py")
    assert "One batch of 256 records" in one(printed, "shoal train")


def test_the_page_of_pytorch(here):
    printed = run("docs/guide/pytorch.md", here)
    checked = one(printed, "shoal check")
    assert "users: Embedding of 8 values, any int64 id" in checked
    assert "tried: model.pt2 predicts this batch as the model does" in checked
    assert re.search(r"^  auc +0\.", one(printed, "shoal train"), re.MULTILINE)
    assert "loaded.py" in " ".join(printed)


def test_the_page_of_jax(here):
    printed = run("docs/guide/jax.md", here)
    checked = one(printed, "shoal check")
    assert "users: Embedding of 8 values, any int64 id" in checked
    assert "Export: keras\n" in checked
    assert re.search(r"^  state +succeeded$", one(printed, "shoal train"), re.MULTILINE)
    assert (here / "for_serving" / "saved_model").is_dir()


def test_the_page_of_sql(here):
    write_people(here / "census")
    Path("shop.db").unlink(missing_ok=True)
    printed = run("docs/guide/sql.md", here)
    shown = printed["shoal sql earns.sql"]
    assert "this trains: TO TRAIN DNNClassifier" in shown
    assert re.search(r"│ auc +│ +0\.[6-9]", shown)
    assert re.search(r"│ occupation +│ auc ", shown)
    assert "def feed_batch" in one(printed, "--dry-run")


def test_the_page_of_running(here):
    printed = run("docs/guide/running.md", here)
    assert "succeeded" in printed["shoal status clicks"]
    assert json.loads(one(printed, "shoal status clicks --json"))["state"] == "succeeded"
    assert one(printed, "shoal checkpoint verify") == "checkpoint 1: good\n"
    assert (here / "model" / "saved_model").is_dir()
    assert "padded, dim 8 -> 16" in one(printed, "--dry-run")
    (difference,) = re.findall(r"difference is (\S+) ", one(printed, "--verify 1000"))
    assert float(difference) <= 1e-6


def test_commands_that_do_not_run_are_still_in_the_pages():
    given = [command for page in PAGES for _, command in commands(page)]
    assert [part for part in NOT_RUN if not any(part in each for each in given)] == []
