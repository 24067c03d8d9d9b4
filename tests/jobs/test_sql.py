"""Statements whose model is a module of the user's, in another database than DuckDB."""

import random
import sqlite3
import subprocess
import sys

import pytest

from shoal.client.found.processes import job_processes, kill_job, process_of
from shoal.sql.databases.database import opened
from shoal.sql.errors import START, SqlError
from shoal.sql.jobs.registry import Registry
from shoal.sql.jobs.run import Session
from shoal.sql.terms import Name
from tests.jobs.running import ZOO
from tests.waiting import until

pytestmark = pytest.mark.job

ZOO_GIVEN = f'shoal.model_zoo="{ZOO}"'


@pytest.fixture
def shop(tmp_path):
    """A database of SQLite with 400 clicks."""
    draw = random.Random(1)
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE clicks (id INTEGER, user INTEGER, item INTEGER, label REAL)")
        rows = [(at, draw.randrange(9), draw.randrange(7)) for at in range(400)]
        rows = [(*row, float((row[1] + row[2]) % 2)) for row in rows]
        database.executemany("INSERT INTO clicks VALUES (?, ?, ?, ?)", rows)
    return path


def test_a_module_is_trained_replaced_and_predicts_into_the_database(shop, tmp_path):
    told, shown = [], []
    registry = Registry(tmp_path / "models")
    session = Session(opened(f"sqlite:///{shop}"), registry, told.append, verbose=0)

    def run(text):
        session.run(text, lambda answer: shown.append(answer.rows()))

    train = (
        f"SELECT * FROM clicks TO TRAIN small.custom_model WITH {ZOO_GIVEN}, model.width=4, "
        'train.epoch=2, train.batch_size=50, validation.select="SELECT * FROM clicks WHERE id < '
        '100" LABEL label INTO of.clicks'
    )
    run(train)
    model, folder = registry.find(Name("of.clicks", START))
    assert model.records == 400
    assert 0 <= model.metrics["auc"] <= 1
    assert told == [f"model of.clicks is trained: {tmp_path / 'models' / 'of' / 'clicks'}"]
    # A job that fails leaves the model as it was, and says why.
    with pytest.raises(SqlError, match="there is no file") as raised:
        run(train.replace("small.custom", "none.custom"))
    assert raised.value.place.line == 1
    assert registry.find(Name("of.clicks", START)) == (model, folder)
    run("SELECT * FROM clicks WHERE id >= 300 TO PREDICT answers.chance USING of.clicks")
    run("SELECT count(*), count(chance), min(id), max(id) FROM answers")
    assert shown == [[(100, 100, 300, 399)]]
    predict = "SELECT * FROM clicks TO PREDICT answers.label"
    with pytest.raises(SqlError, match="there is a table answers: say WITH"):
        run(f"{predict} USING of.clicks")
    run(f"{predict} USING of.clicks WITH predict.replace=true")
    run("SELECT count(*), avg(label BETWEEN 0 AND 1) FROM answers")
    assert shown[-1] == [(400, 1.0)]


def test_a_jobs_own_failure_is_the_statements(shop, tmp_path):
    registry = Registry(tmp_path / "models")
    session = Session(opened(f"sqlite:///{shop}"), registry, print, verbose=0)
    text = (
        f"SELECT id, user, label FROM clicks\nTO TRAIN small.custom_model WITH {ZOO_GIVEN} INTO m"
    )
    with pytest.raises(SqlError, match="item") as raised:
        session.run(text, print)
    assert raised.value.place.line == 2
    assert registry.names() == []


def test_a_command_and_a_job_that_are_killed_leave_the_old_model(shop, tmp_path):
    models, registry = tmp_path / "models", Registry(tmp_path / "models")

    def command(epochs):
        text = (
            f"SELECT * FROM clicks TO TRAIN small.custom_model WITH {ZOO_GIVEN}, "
            f"train.epoch={epochs}, shoal.servers=1 LABEL label INTO clicks"
        )
        (tmp_path / "train.sql").write_text(text)
        line = [sys.executable, "-m", "shoal", "sql", str(tmp_path / "train.sql")]
        line += ["--database", f"sqlite:///{shop}", "--models", str(models)]
        return subprocess.Popen(line, stdout=subprocess.DEVNULL)

    with command(1) as process:
        assert process.wait(300) == 0
    old = registry.find(Name("clicks", START))
    config = models / ".clicks.2" / "job" / "job.json"
    with command(10**6) as process:
        until("a worker", lambda: config.exists() and process_of(config, "worker"))
        process.kill()
    assert job_processes(config)
    kill_job(config)
    assert registry.find(Name("clicks", START)) == old
    with command(2) as process:
        assert process.wait(300) == 0
    assert registry.find(Name("clicks", START))[0].attributes["train.epoch"] == 2
    assert len([*models.glob(".clicks.[0-9]*")]) == 1
