"""Files that come while jobs train: each record once, whoever is killed, and over legs."""

import contextlib
import sqlite3
import threading

import pytest

from shoal.master.job.events import MasterRestarted
from tests.jobs.results import PIPELINED, applied
from tests.jobs.running import RunningJob, audited, run
from tests.waiting import until

pytestmark = [pytest.mark.job, pytest.mark.usefixtures("own")]

RECORDS = 30
"""Of a file."""


class Writer:
    """Adds files to a folder in a thread, until it is left."""

    def __init__(self, folder, seconds):
        folder.mkdir()
        self.folder, self.seconds = folder, seconds
        self.files = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def add(self):
        """One more file, which is whole when its name is there."""
        first = self.files * RECORDS
        path = self.folder / f".part-{self.files:05}.csv"
        path.write_text("id\n" + "".join(f"{first + i}\n" for i in range(RECORDS)))
        path.rename(self.folder / path.name[1:])
        self.files += 1

    def _run(self):
        while not self._done.wait(self.seconds):
            self.add()

    def __enter__(self):
        self.add()
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        self._done.set()
        self._thread.join()


def trained(count):
    return lambda status: status.ledger.trained_once >= count


def test_each_file_is_trained_once_whoever_is_killed_and_over_legs(tmp_path):
    fields = {
        "arriving": 0.3,
        "latest": tmp_path / "latest",
        "only_new": True,
        "num_minibatches_per_task": 2,
        "workers": "2",
        "servers": "2",
        "durability": "file",
        "relaunch_limit": 9,
        **PIPELINED,
    }
    with Writer(tmp_path / "in", 0.15) as writer:
        fields["training_data"] = writer.folder
        with RunningJob("train", tmp_path, "monday", leg=5, **fields) as job:
            for number, who in enumerate((("worker", 0), ("ps", 1), ("master", 0))):
                job.wait_status(f"files before kill {number}", trained((3 + 6 * number) * RECORDS))
                job.kill(*who)
            until("a new master", lambda: MasterRestarted() in job.events())
            ended = job.ended().succeeded()
        first = ended.ledger["trained_once"]
        assert "no more data is looked for (--leg)" in str(ended.result["messages"])
        assert not audited(job.folder)["problems"]
        until("a file that the first job did not see", lambda: writer.files * RECORDS > first)
        more = {"until_idle": 1.5, "output": tmp_path / "out"}
        with RunningJob("train", tmp_path, "tuesday", **fields, **more) as job:
            job.wait_status("files of the second leg", trained(5 * RECORDS))
            job.kill("worker", 1)
            writer.end()
            ended = job.ended().succeeded()
    assert "no more data is looked for (--until-idle)" in str(ended.result["messages"])
    records = writer.files * RECORDS
    assert first + ended.ledger["trained_once"] == records
    total, counts = applied(tmp_path / "out")
    assert total == [records] * 2
    assert counts == dict.fromkeys(range(records), 1)


def test_old_files_may_go_and_a_changed_one_is_named(tmp_path):
    with Writer(tmp_path / "in", 1000) as writer:
        fields = {"training_data": writer.folder, "arriving": 0.2, "until_idle": 2.0, **PIPELINED}
        with RunningJob("train", tmp_path, "gone", output=tmp_path / "out", **fields) as job:
            job.wait_status("the first file", trained(RECORDS))
            writer.add()
            job.wait_status("the second", trained(2 * RECORDS))
            (writer.folder / "part-00001.csv").write_text("id\n7\n")
            job.wait_status(
                "word of it",
                lambda status: any("part-00001.csv has changed" in m for m in status.messages),
            )
            for path in writer.folder.iterdir():
                path.unlink()
            ended = job.ended().succeeded()
    assert ended.ledger["trained_once"] == 2 * RECORDS
    assert applied(tmp_path / "out")[0] == [2 * RECORDS] * 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epochs": 2}, "--arriving trains on each file once, and --epochs is 2: remove --epochs"),
        ({"arriving": 0, "leg": 5}, "--leg works only with --arriving: add --arriving, or leave"),
        (
            {"training_data": "sqlite:///some.db#t"},
            "--arriving: no new files can come to this --training-data: name a folder",
        ),
    ],
)
def test_what_cannot_arrive_is_refused(tmp_path, monkeypatch, fields, message):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("id\n1\n")
    monkeypatch.chdir(tmp_path)
    with contextlib.closing(sqlite3.connect("some.db")) as database:
        database.execute("create table t (id integer primary key)")
    given = {"training_data": tmp_path / "in", "arriving": 1, **PIPELINED} | fields
    ended = run("train", tmp_path, "refused", **given)
    assert ended.code == 2, ended.out
    assert message in ended.err
