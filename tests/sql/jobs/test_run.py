"""What statements do before and after their jobs: checks, the dry run, tables of predictions."""

import csv
import random
import sqlite3
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.errors import UserError
from shoal.result import JobFailedError
from shoal.sql.databases.database import opened
from shoal.sql.databases.engine import Saved
from shoal.sql.errors import START, SqlError
from shoal.sql.jobs import answers
from shoal.sql.jobs.answers import answered, bars
from shoal.sql.jobs.registry import Model, Registry
from shoal.sql.jobs.run import Session
from shoal.sql.jobs.training import command_of
from shoal.sql.terms import Name


@pytest.fixture
def people(tmp_path, monkeypatch):
    """A folder with people.csv, entered."""
    draw = random.Random(1)
    with (tmp_path / "people.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "job", "pay", "rich"])
        for _ in range(300):
            age, job = draw.randrange(20, 70), draw.choice(["cook", "judge", "smith"])
            pay = age * 50 + (job == "judge") * 1000
            writer.writerow([age, job, pay, "rich" if pay > 2500 else "poor"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Shown:
    """A session, what it told, and its answers."""

    def __init__(self, folder, **options):
        self.told, self.answers = [], []
        self.registry = Registry(folder / "models")
        self.session = Session(opened(""), self.registry, self.told.append, verbose=0, **options)

    def run(self, text):
        self.session.run(text, lambda answer: self.answers.append(answer.rows()))
        return self.answers

    def mistake(self, text):
        with pytest.raises(SqlError) as raised:
            self.run(text)
        return raised.value


def kept(registry, name, **more):
    values = {"algorithm": "clicks.custom_model", "module": True, "arguments": {}, "label": "rich"}
    values |= {
        "plan": "",
        "columns": {},
        "attributes": {},
        "metrics": {"auc": 0.75},
        "records": 300,
    }
    named = Name(name, START)
    with registry.making(named) as folder:
        registry.keep(named, folder, Model(**{"name": name, **values, **more}), "SELECT 1")


TRAIN = "SELECT * FROM 'people.csv' TO TRAIN"


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        (f"{TRAIN} DNNClasifier LABEL rich INTO m", "DNNClasifier", "mean DNNClassifier"),
        (f"{TRAIN} xgboost.gbtree LABEL rich INTO m", "xgboost", "no model xgboost.gbtree: there"),
        (f"{TRAIN} a/b.custom LABEL rich INTO m", "a/b", "neither a model of shoal"),
        (f"{TRAIN} DNNClassifier INTO m", "TO TRAIN", "LABEL and the column that is learned"),
        (f"{TRAIN} DCN WITH model.hiden_units=3 LABEL rich INTO m", "model.hi", "model.hidden_u"),
        (f"{TRAIN} DCN WITH train.epohs=3 LABEL rich INTO m", "train.epohs", "mean train.epoch"),
        (f"{TRAIN} DCN WITH shoal.epochs='a' LABEL rich INTO m", "shoal.epochs", "type int"),
        (f"{TRAIN} DCN WITH shoal.output=a LABEL rich INTO m", "shoal.output", "statement itself"),
        (f"{TRAIN} a.b WITH optimizer=Adam INTO m", "optimizer", "no attribute optimizer here"),
        (f"{TRAIN} a.b COLUMN EMBEDDING(aeg, 3) INTO m", "aeg", "no column aeg .*mean age"),
        (f"{TRAIN} a.b LABEL poor INTO m", "poor", "no column poor"),
        (f"{TRAIN} DCN COLUMN aeg LABEL rich INTO m", "aeg", "mean age"),
        (f"{TRAIN} DeepFM LABEL rich INTO m", "TO TRAIN", "it needs two or more"),
        (f"{TRAIN} DNNRegressor LABEL rich INTO m", "DNNRegressor", "rich is text"),
        (f"{TRAIN} DCN WITH validation.select=3 LABEL rich INTO m", "validation", "in quotes"),
        (
            f"{TRAIN} DCN WITH validation.select='DROP TABLE t' LABEL rich INTO m",
            "valid",
            "expected",
        ),
        (
            f"{TRAIN} DCN WITH validation.select='SELECT x' LABEL rich INTO m",
            "valid",
            "select: .*x",
        ),
        ("SELECT * FROM 'people.csv' WHERE age > 99 LABEL rich INTO m", "SELECT", "gives no row"),
        ("SELECT aeg FROM 'people.csv' LABEL rich INTO m", "aeg", "aeg"),
        ("SELECT 1 TO PREDICT a.b USING earn", "earn", "no model earn .*mean earns"),
        ("SELECT 1 TO PREDICT a.b WITH predict.repalce=true USING earns", "predict.r", "replace"),
        ("SELECT 1 AS rich TO EVALUATE earns LABEL poor", "poor", "SELECT poor AS rich"),
        ("SELECT 1 TO EVALUATE earns WITH validation.metrics='auc'", "valid", "eval_metrics_fn"),
        ("SELECT 1 TO EXPLAIN earns USING TreeExplainer", "TreeExplainer", "by permutation"),
        ("SELECT 1 TO EXPLAIN earns WITH plots=force", "plots", "no attribute plots"),
        ("SELECT 1 TO EXPLAIN bare", "bare", "trained without LABEL"),
        ("SHOW TRAIN earnings", "earnings", "no model earnings"),
        ("DROP MODEL nothing", "nothing", "no model nothing"),
    ],
)
def test_a_mistake_is_told_at_its_place_and_makes_no_model(text, at, message, people):
    shown = Shown(people)
    kept(shown.registry, "earns")
    kept(shown.registry, "bare", label="")
    program = f"SELECT 1;\n{text};"
    with pytest.raises(SqlError, match=message) as raised:
        shown.run(program)
    _, line, caret = raised.value.explained(program).rsplit("\n", 2)
    assert line[len(caret) - 1 :].startswith(at)
    assert shown.registry.names() == ["bare", "earns"]


def test_nothing_is_run_of_a_program_with_a_mistake_of_form(people):
    shown = Shown(people)
    shown.mistake("CREATE TABLE t AS SELECT 1 AS a; SELECT * FROM t TO TRAIN")
    assert "t does not exist" in str(shown.mistake("SELECT * FROM t"))
    assert shown.run("CREATE TABLE t AS SELECT 1 AS a; SELECT * FROM t") == [[(1,)]]


def test_a_dry_run_prints_the_module_and_the_command(people):
    shown = Shown(people, dry=True)
    select = "validation.select=\"SELECT * FROM 'people.csv' LIMIT 9\""
    shown.run(
        f"CREATE TABLE t AS SELECT 1; {TRAIN} DNNClassifier WITH train.epoch=2, {select} "
        "COLUMN age LABEL rich INTO of.earns; SELECT * FROM 'people.csv' LABEL pay INTO pays"
    )
    first, module, command, chosen, _, other = shown.told
    assert first == "not run: CREATE TABLE t AS SELECT 1"
    compile(module, "model.py", "exec")
    folder = people / "models" / "of" / "earns"
    for part in (
        f"--training-data {folder}/given/select.parquet",
        f"--validation-data {folder}/given/validation.parquet",
        f"--model-zoo {folder}",
        "--model-def model.custom_model",
        "--epochs 2",
    ):
        assert part in command.replace(" \\\n   ", "")
    assert command.startswith("shoal train \\\n")
    assert chosen.splitlines()[0] == "this trains: TO TRAIN DNNRegressor"
    assert "COLUMN age, " in chosen
    assert "--output" in other
    assert not (people / "models").exists()
    assert command_of({"sync": True, "model_def": "a b", "csv_quotes": ""}) == (
        "shoal train \\\n    --sync \\\n    --model-def 'a b'"
    )


def test_models_are_listed_and_shown(people):
    shown = Shown(people)
    shown.run("SHOW MODELS")
    assert shown.told == ["there is no model"]
    kept(shown.registry, "of.earns")
    assert shown.run("SHOW MODELS")[0][0][:4] == ("of.earns", "clicks.custom_model", "rich", 300)
    shown.run("SHOW TRAIN of.earns; DROP MODEL of.earns; SHOW MODELS")
    assert shown.told[1].startswith("SELECT 1;\n-- clicks.custom_model, 300 records")
    assert "auc 0.7500" in shown.told[1]
    assert shown.told[2:] == ["model of.earns is removed", "there is no model"]


def test_a_failed_job_is_an_error_of_the_statement(people, monkeypatch):
    shown = Shown(people)
    kept(shown.registry, "m", records=1)
    for error in (JobFailedError("all is lost", None), UserError("wrong"), OSError(28, "full")):

        def failing(*_, error=error, **__):
            raise error

        monkeypatch.setattr(Session, "_job", failing)
        mistake = shown.mistake(f"{TRAIN} a.b LABEL rich INTO m")
        assert (mistake.place.column, mistake.__cause__) == (28, error)
    assert shown.registry.find(Name("m", START))[0].records == 1


def test_a_table_of_another_database_is_not_replaced_unasked(tmp_path):
    with sqlite3.connect(tmp_path / "a.db") as database:
        database.execute("CREATE TABLE scores (metric)")
    registry = Registry(tmp_path / "models")
    kept(registry, "m")
    session = Session(opened(f"sqlite:///{tmp_path}/a.db"), registry, print)
    for clause in (
        "PREDICT scores.rich USING m",
        "EVALUATE m INTO scores",
        "EXPLAIN m INTO scores",
    ):
        with pytest.raises(SqlError, match=r"there is a table scores: say WITH predict\.replace"):
            session.run(f"SELECT 1 AS rich TO {clause}", print)


def predicted(folder, values, records=None):
    count = len(values)
    table = pa.table({"source": ["s"] * count, "record": range(count), "prediction": values})
    pq.write_table(table, folder / "predictions.parquet", row_group_size=3)
    rows = pa.table({"id": range(records or count), "rich": ["?"] * (records or count)})
    pq.write_table(rows, folder / "select.parquet", row_group_size=5)
    saved = Saved(folder / "select.parquet", rows.schema, rows.num_rows)
    model = Model("m", "a.b", True, {}, "rich", "", {}, {})
    return answered(model, saved, folder / "predictions.parquet", "rich")


@pytest.mark.parametrize("values", [np.arange(17.0), list(np.arange(34.0).reshape(17, 2))])
def test_predictions_stand_beside_their_rows(values, tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "PIECE", 4)
    schema, batches = predicted(tmp_path, [np.float32(v) if np.ndim(v) == 0 else v for v in values])
    table = pa.Table.from_batches(batches, schema)
    assert table.column_names == ["id", "rich"]
    assert table["id"].to_pylist() == list(range(17))
    np.testing.assert_array_equal(np.array(table["rich"].to_pylist()), np.array(values))


def test_predictions_that_are_missing_are_told(tmp_path):
    with pytest.raises(UserError, match="9 rows have 8 predictions"):
        predicted(tmp_path, [0.5] * 8, records=9)


def test_bars_are_as_long_as_their_values():
    assert bars([3.0, 1.5, -1.0, 0.0]).to_pylist() == ["█" * 30, "█" * 15, "", ""]
    assert bars([]).to_pylist() == []
    assert bars([-1.0]).to_pylist() == [""]


def test_statements_load_no_framework(people):
    code = (
        "import sys\nfrom pathlib import Path\nfrom shoal.sql.databases.database import opened\n"
        "from shoal.sql.jobs.registry import Registry\nfrom shoal.sql.jobs.run import Session\n"
        "session = Session(opened(''), Registry(Path('m')), print, dry=True)\n"
        f"session.run({TRAIN + ' DCN LABEL rich INTO m; SHOW MODELS'!r}, print)\n"
        "import shoal.api\n"
        "print(sorted({'tensorflow', 'keras', 'torch', 'jax'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_missing_extra_is_named(tmp_path):
    for name in ("sqlglot", "duckdb"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError({name!r})")
        code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from shoal.cli.main import main"
        done = subprocess.run(
            [sys.executable, "-c", f"{code}; main(['sql', 'none.sql'])"],
            capture_output=True,
            text=True,
        )
        (tmp_path / f"{name}.py").unlink()
        assert done.returncode == 2
        assert done.stderr == (
            f"Error: shoal sql needs {name}; install it with: pip install 'shoal[sql-front]'\n"
        )
