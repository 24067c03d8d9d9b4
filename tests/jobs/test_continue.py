"""Jobs that go on from an earlier job's checkpoint, on other data and other servers."""

import os
import shutil

import numpy as np
import pytest
from pyarrow import csv

from shoal.base.disk.job_folder import JobFolder
from shoal.checkpoints import contents
from shoal.checkpoints.newest import checkpoint_at
from tests.jobs.results import COUNTING, applied, model
from tests.jobs.running import RunningJob, audited, resume, run

pytestmark = pytest.mark.job

MODULE = """
import keras

from shoal.layers import Embedding
from shoal.optimizers import RowwiseAdagrad


def feed(dataset, mode, metadata):
    return dataset.map(lambda r: ({"user": r["user"], "item": r["item"]}, r["label"]))


def custom_model(dim=4):
    user = keras.Input([], dtype="int64", name="user")
    item = keras.Input([], dtype="int64", name="item")
    users = Embedding(dim, name="users", optimizer=RowwiseAdagrad(0.05), admit_after=3)(user)
    items = Embedding(3, name="items")(item)
    hidden = keras.layers.Dense(5, activation="relu")(keras.ops.concatenate([users, items], 1))
    return keras.Model(
        {"user": user, "item": item}, keras.layers.Dense(1, activation="sigmoid")(hidden)[:, 0]
    )


loss = "binary_crossentropy"


def optimizer(rate=0.01):
    return keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(rate, 10, 0.9))
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory, clicks):
    """Three epochs in one job; `fields` of such a job, with one task for all records."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "living.py").write_text(MODULE)
    fields = {
        "model_zoo": folder,
        "model_def": "living.custom_model",
        "training_data": clicks,
        "batch_size": 25,
        "num_minibatches_per_task": 24,
        "pipeline_depth": 0,
        "seed": 7,
    }
    run(
        "train", folder, "whole", epochs=3, servers="2", output=folder / "out", **fields
    ).succeeded()
    return folder, fields


def saved(folder):
    """All that the newest checkpoint of a job holds of its model, whichever server wrote it."""
    checkpoint = checkpoint_at(str(folder / "checkpoints"))
    rows, counted, dense = {}, {}, {}
    for server in range(len(checkpoint.shards)):
        for position, table in enumerate(checkpoint.model.tables):
            for piece in contents.table_pieces(checkpoint, server, position):
                for at, key in enumerate(piece["id"].tolist()):
                    columns = {name: column[at].tolist() for name, column in piece.items()}
                    assert rows.setdefault((table.name, key), columns) is columns
            for page in contents.counting_pages(checkpoint, server, position, None):
                if (piece := contents.page_rows(checkpoint, page)) is None:
                    continue
                columns = (piece[name].tolist() for name in ("id", "uses", "version"))
                counted |= {(table.name, key): each for key, *each in zip(*columns, strict=True)}
        for name, part in contents.dense_slices(checkpoint, server).items():
            dense.setdefault(name, []).append(part)
    return rows, counted, {name: np.concatenate(parts).tolist() for name, parts in dense.items()}


def test_three_jobs_on_other_servers_are_one_job_bit_for_bit(plain, tmp_path):
    """Values, optimizer slots, counts, steps, and the schedule of the learning rate."""
    folder, fields = plain
    before = None
    for number, servers in enumerate((2, 1, 3), 1):
        more = {"continue_from": before} if before else {}
        ended = run(
            "train", tmp_path, f"day{number}",
            servers=str(servers), output=tmp_path / f"out{number}", **fields, **more,
        ).succeeded()  # fmt: skip
        before = tmp_path / f"day{number}"
        assert ended.ledger["total"] == 600
        assert set(ended.result["versions"].values()) == {24 * number}
        assert ended.result["log"]["unprotected"]["times"] == 0  # a checkpoint follows at once
    rows, counted, dense = saved(tmp_path / "day3")
    assert (rows, counted, dense) == saved(folder / "whole")
    assert {name for name, _ in rows} == {"items", "users"}
    assert len(dense) == 3
    assert model(tmp_path / "out3") == model(folder / "out")


def test_a_job_a_day_is_one_job_in_the_order_of_time_bit_for_bit(plain, clicks, tmp_path):
    _, fields = plain
    table = csv.read_csv(clicks)
    assert table.num_rows == 600
    days = {2: table[:210], 9: table[210:440], 10: table[440:]}
    for day, own in days.items():
        folder = tmp_path / "data" / f"day={day}"
        folder.mkdir(parents=True)
        csv.write_csv(own, folder / "clicks.csv")
    fields = fields | {"num_minibatches_per_task": 3, "validation_data": clicks}
    whole = fields | {"training_data": tmp_path / "data", "shuffle": "time"}
    of_all = run("train", tmp_path, "whole", servers="2", **whole).succeeded()
    before = {}
    for day, servers in ((2, 1), (9, 3), (10, 2)):
        own = fields | {"training_data": tmp_path / "data" / f"day={day}", "shuffle": "time"}
        ended = run(
            "train", tmp_path, f"day{day}", servers=str(servers), **own, **before
        ).succeeded()
        before = {"continue_from": tmp_path / f"day{day}"}
    assert saved(tmp_path / "day10") == saved(tmp_path / "whole")
    assert ended.result["metrics"] == of_all.result["metrics"]
    assert ended.result["versions"]["ps-0"] == of_all.result["versions"]["ps-0"] == 9 + 10 + 7


def test_a_killed_server_begins_again_with_what_the_job_began_with(numbered, tmp_path):
    """Before the first checkpoint, and after it; then the whole job is killed and resumed."""
    training, more = numbered
    first = run("train", tmp_path, "first", training_data=training, servers="2", **COUNTING)
    first.succeeded()
    link = tmp_path / "latest"
    link.symlink_to("first")
    with RunningJob(
        "train",
        tmp_path,
        "second",
        environment={"GATES": "step-1 step-5 step-9"},
        training_data=more,
        continue_from=link,
        output=tmp_path / "out",
        servers="3",
        pipeline_depth=0,
        **COUNTING,
    ) as job:
        job.at_gate("step-1")
        job.kill("ps", 1)
        job.open("step-1")
        job.at_gate("step-5")
        job.wait_taken()
        job.kill("ps", 2)
        job.open("step-5")
        job.at_gate("step-9")
        job.kill_whole()
    link.unlink()  # nobody reads it twice
    done = resume(job.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    total, counts = applied(tmp_path / "out")
    assert total == [640.0, 640.0]
    assert counts == dict.fromkeys([*range(480), *range(1000, 1160)], 1)
    audited(job.folder)


def day(folder, number, more=""):
    """The file of a day, with ten ids of its own."""
    path = folder / "clicks" / f"day{number}.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_text("id\n" + "".join(f"{number}{i}\n" for i in range(10)) + more)
    return path


def test_a_job_a_day_trains_each_file_once(tmp_path):
    """By a link to the newest: a first job, one with a new file, one with none, and a last one."""
    fields = {"training_data": tmp_path / "clicks", "only_new": True, "latest": "latest"}

    def train(name, **more):
        return run(
            "train", tmp_path, name, output=tmp_path / f"{name}-out", **COUNTING, **fields, **more
        )

    link = tmp_path / "latest"
    first = day(tmp_path, 1)
    assert train("monday").succeeded().ledger["total"] == 10
    assert os.readlink(link) == "monday"
    # As after a kill behind the journal's last event: the result and the list are written again.
    trained = tmp_path / "monday" / "checkpoints" / "trained.json.gz"
    for path in (trained, tmp_path / "monday" / "result.json"):
        path.unlink()
        assert resume(JobFolder(tmp_path / "monday")).returncode == 0
        assert path.exists()
    day(tmp_path, 2)
    tuesday = train("tuesday", servers="2").succeeded()
    assert tuesday.ledger["total"] == 10
    assert "1 of 2 sources of --training-data are new" in tuesday.out
    assert tuesday.result["continued_from"] == str(
        tmp_path / "monday" / "checkpoints" / "checkpoint-00000001"
    )
    # Again, as by an Airflow task that is repeated: nothing is done, and that is a success.
    before = (tmp_path / "tuesday" / "result.json").read_bytes()
    again = train("tuesday", servers="2")
    assert again.code == 0, again.err
    assert "tuesday has succeeded before" in again.out + again.err
    assert (tmp_path / "tuesday" / "result.json").read_bytes() == before
    assert train("wednesday").succeeded().ledger["total"] == 0
    day(tmp_path, 4)
    assert train("thursday", servers="3").succeeded().ledger["total"] == 10
    assert os.readlink(link) == "thursday"
    total, counts = applied(tmp_path / "thursday-out")
    assert sum(total) == 2 * 30.0
    assert counts == {int(f"{number}{i}"): 1 for number in (1, 2, 4) for i in range(10)}
    # A file that was changed is told, with who trained it.
    day(tmp_path, 1, "19999\n")
    changed = train("friday")
    assert changed.code == 2
    assert f"--only-new: {first} changed after job monday had trained on it" in changed.err
    assert os.readlink(link) == "thursday"


def test_nothing_is_trained_twice_because_a_forerunner_was_deleted(tmp_path):
    """Under the job: what was trained before is not known any more, and the next job says so."""
    day(tmp_path, 1)
    fields = {"training_data": tmp_path / "clicks", "only_new": True, "latest": "latest"}
    run("train", tmp_path, "monday", **COUNTING, **fields).succeeded()
    day(tmp_path, 2)
    environment = {"GATES": "step-1"}
    with RunningJob(
        "train", tmp_path, "tuesday", environment=environment, **COUNTING, **fields
    ) as job:
        job.at_gate("step-1")
        shutil.rmtree(tmp_path / "monday")
        job.open("step-1")
        job.ended().succeeded()
    assert os.readlink(tmp_path / "latest") == "tuesday"
    wednesday = run("train", tmp_path, "wednesday", **COUNTING, **fields)
    assert wednesday.code == 2
    assert "trained.json.gz does not tell what was trained before the job of" in wednesday.err


def test_a_series_has_one_job_at_a_time(tmp_path):
    day(tmp_path, 1)
    fields = {"training_data": tmp_path / "clicks", "latest": tmp_path / "latest", **COUNTING}
    with RunningJob("train", tmp_path, "one", environment={"GATES": "step-1"}, **fields) as job:
        job.at_gate("step-1")
        assert "another job that continues from latest is running" in refused(tmp_path, **fields)
        job.open("step-1")
        job.ended().succeeded()
    (tmp_path / "one").rename(tmp_path / "away")
    line = refused(tmp_path, **fields)
    assert "--latest: latest leads to one, which is not there" in line
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").mkdir()
    assert "latest is no link" in refused(tmp_path, **fields)


def refused(folder, **fields):
    """The one line of a job that could not begin."""
    ended = run("train", folder, "refused", **fields)
    assert ended.code == 2
    assert "Traceback" not in ended.err
    (line,) = [each for each in ended.err.splitlines() if each.startswith("Error: ")]
    return line


def test_what_a_job_cannot_continue_from(plain, numbered, tmp_path):
    folder, fields = plain
    name = os.path.relpath(folder / "whole", tmp_path)
    for at, words in (
        (folder / "whol", ["there is no job", "did you mean", "whole"]),
        (folder, ["holds no checkpoint"]),
        (folder / "living.py", ["Not a directory"]),
    ):
        line = refused(tmp_path, continue_from=at, **fields)
        assert line.startswith("Error: --continue-from: ")
        assert all(word in line for word in words), line
    line = refused(tmp_path, continue_from=name, restore_from=folder / "out", **fields)
    assert "--continue-from cannot be combined with --restore-from" in line
    itself = run("train", folder, "whole", continue_from=folder / "whole", overwrite=True, **fields)
    assert "is the folder of this job itself" in itself.err
    assert (folder / "whole" / "result.json").is_file()


def test_another_model_is_told_to_migrate_the_checkpoint(plain, tmp_path):
    folder, fields = plain
    line = refused(tmp_path, continue_from=folder / "whole", model_params="dim=6", **fields)
    assert "the model is another one than that of" in line
    assert "table 'users' has dim 6, and 4 there" in line
    assert "shoal checkpoint migrate" in line
    # Another rate is no other model.
    run(
        "train", tmp_path, "faster",
        continue_from=folder / "whole", model_params="rate=0.1", **fields,
    ).succeeded()  # fmt: skip
