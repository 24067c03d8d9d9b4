"""Data and finished jobs that several tests of whole jobs share."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.seed import pool
from tests.jobs.running import MODELS, RunningJob, environment_of, run
from tests.prepared import prepared_once

ROOT = Path(__file__).parents[2]
MOVIELENS = ROOT / "build" / "movielens"


@pytest.fixture(scope="session")
def movielens():
    """MovieLens-100K, prepared once for these tests and `make demo`."""
    command = [sys.executable, "-m", "shoal.model_zoo.movielens.prepare", str(MOVIELENS)]
    return prepared_once(MOVIELENS, "train.parquet", lambda _: subprocess.run(command, check=True))


def pytest_generate_tests(metafunc):
    """Tests of `own` execute; with --both-ways, they fork from seeds of their own as well."""
    if "own" in metafunc.fixturenames:
        seeds = ["own-seeds"] if metafunc.config.getoption("both_ways") else []
        metafunc.parametrize("own", ["executed", *seeds], indirect=True)


@pytest.fixture
def own(request, monkeypatch):
    """The processes of a test's jobs start as those of a user's: not from seeds of the test run."""
    if request.param == "executed":
        monkeypatch.setenv(pool.VARIABLE, pool.OFF)
    else:
        monkeypatch.delenv(pool.VARIABLE)


@pytest.fixture
def hidden_libraries(monkeypatch):
    """The same environment for commands that a test starts by itself."""
    monkeypatch.setenv("PYTHONPATH", environment_of()["PYTHONPATH"])


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="session")
def numbered(session_folder):
    """(training, validation) files with 480 and 160 ids, none twice."""

    def write(name, ids):
        path = session_folder / name
        path.write_text("id\n" + "".join(f"{i}\n" for i in ids))
        return path

    return write("numbers.csv", range(480)), write("more.csv", range(1000, 1160))


@pytest.fixture(scope="session")
def clicks(session_folder):
    """A file of 600 records: user (the record's position), item, label."""
    chance = random.Random(5)
    lines = [f"{i},{chance.randrange(40)},{chance.random() < 0.4:d}.0\n" for i in range(600)]
    path = session_folder / "clicks.csv"
    path.write_text("user,item,label\n" + "".join(lines))
    return path


@pytest.fixture(scope="session")
def trained(session_folder, clicks):
    """An ended job that trained zoo/small.py on `clicks` with one worker, two servers."""
    return run(
        "train",
        session_folder,
        "trained",
        model_def="small.custom_model",
        training_data=clicks,
        validation_data=clicks,
        output=session_folder / "trained-out",
        **MODELS,
        batch_size=25,
        servers="2",
        seed=7,
        step_losses=True,
        pipeline_depth=0,  # what test_determinism.py compares must not depend on timing
    ).succeeded()


@pytest.fixture(scope="session")
def cursed(numbered, session_folder):
    """A job whose data holds four bad records, in feed, in the loss and in validation."""
    training, validation = numbered
    with RunningJob(
        "train",
        session_folder,
        "cursed",
        environment={"CURSED": "feed-37 loss-38 nan-305 loss-1111"},
        training_data=training,
        validation_data=validation,
        output=session_folder / "cursed-out",
        batch_size=10,
        num_minibatches_per_task=4,
        epochs=2,
        workers="2",
        servers="2",
        max_bad_records=4,
        model_def="cursed.custom_model",
    ) as job:
        ended = job.ended()
    assert ended.code == 0, ended.out + ended.err
    return job, ended
