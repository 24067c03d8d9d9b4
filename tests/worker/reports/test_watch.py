"""Threads that stand still: found, named with the user's line, and reported to the master once."""

import subprocess
import sys
import threading
import time

import pytest

from shoal.errors import EXIT_JOB_FAILED
from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import serving
from shoal.proto.errors import WireError
from shoal.worker.reports.heartbeat import Heartbeat
from shoal.worker.reports.progress import Progress
from shoal.worker.reports.watch import Watch, stacks

RECORDS = pb.Range(source="data.csv", start=16, end=32)


@pytest.fixture
def standing():
    """Have threads stand still in bodies of a watch, until the test ends."""
    go_on, threads = threading.Event(), []

    def stand(watch, *arguments, **options):
        there = threading.Event()

        def run():
            with watch.doing(*arguments, **options):
                there.set()
                go_on.wait()

        threads.append(threading.Thread(target=run, name="standing"))
        threads[-1].start()
        assert there.wait(60)

    yield stand
    go_on.set()
    for thread in threads:
        thread.join()


def age(watch, seconds=3600.0):
    """Have what is under way be so much older."""
    for entry in watch._entries.values():
        entry.since -= seconds


def wait_stuck(watch, limit):
    while (found := watch.stuck(limit)) is None:
        time.sleep(0.005)
    return found


def test_what_has_ended_is_not_stuck_and_is_known_as_the_longest():
    watch = Watch()
    with watch.doing("feed", RECORDS):
        time.sleep(0.01)
    assert watch.oldest() is None
    assert watch.stuck(0.0) is None
    assert watch.longest >= 0.01


def test_a_thread_that_stands_still_is_named_with_its_records(standing):
    watch = Watch()
    standing(watch, "feed", RECORDS)
    seconds, entry = wait_stuck(watch, 0.01)
    assert seconds > 0.03  # three times the limit: it is the first of its kind
    assert str(entry) == "feed of records 16 to 31 of data.csv"
    assert watch.stuck(3600.0) is None


def test_time_that_is_excused_does_not_count(standing):
    watch = Watch()
    standing(watch, "the pull")
    age(watch)
    assert watch.stuck(1000.0)
    watch.excuse()
    assert watch.oldest()[0] < 1000.0
    assert watch.stuck(300.0) is None


def test_a_read_of_storage_is_named_before_what_waits_for_it(standing):
    watch = Watch()
    standing(watch, "feed", RECORDS)
    standing(watch, "reading", RECORDS, storage=True)
    _, entry = wait_stuck(watch, 0.01)
    while not entry.storage:  # it has begun a little later
        _, entry = wait_stuck(watch, 0.01)
    assert entry.what == "reading"


def test_stacks_have_the_users_calls_in_short(standing):
    standing(Watch(), "feed")
    whole, short = stacks()
    assert "thread standing:" in whole
    assert "in run: go_on.wait()" in short
    assert "test_watch.py, line" in short


@pytest.fixture
def master(connect):
    """A master over real gRPC that allows `limit` seconds and keeps what is reported."""

    class Master:
        def __init__(self):
            self.beats, self.failures = [], []
            self.ready, self.refused = True, 0
            self.stacks_wanted = 0
            handlers = {methods.HEARTBEAT: self._beat, methods.REPORT_FAILURE: self._failed}
            self._server, port = serving.serve(handlers, "127.0.0.1:0", 4)
            self.connection = connect(f"127.0.0.1:{port}")

        def _beat(self, request):
            self.beats.append(request)
            return pb.HeartbeatReply(
                step_limit_seconds=0.01,
                stacks_wanted=self.stacks_wanted,
            )

        def _failed(self, request):
            if not self.ready:
                self.refused += 1
                raise WireError(pb.NOT_READY, "it is being started")
            self.failures.append(request)
            return pb.ReportFailureReply()

        def stop(self):
            self._server.stop(None).wait()

    made = Master()
    yield made
    made.stop()


def beating(master, progress):
    return Heartbeat(master.connection, progress, 3, 1, 60.0)


def test_a_stuck_thread_is_reported_once_with_its_records_and_stacks(master, standing):
    progress = Progress()
    heartbeat = beating(master, progress)
    heartbeat.beat()
    assert not master.failures
    standing(progress.watch, "feed", RECORDS)
    wait_stuck(progress.watch, 0.01)
    for _ in range(3):
        heartbeat.beat()
    (report,) = master.failures
    assert (report.role, report.index, report.incarnation) == ("worker", 3, 1)
    assert report.failure.kind == pb.INTERNAL
    assert report.failure.range == RECORDS
    assert "it is stuck for" in report.failure.message
    assert "feed of records 16 to 31 of data.csv" in report.failure.message
    assert "go_on.wait()" in report.failure.message
    assert "thread standing:" in report.failure.traceback
    assert master.beats[-1].busy_with == "feed of records 16 to 31 of data.csv"
    assert master.beats[-1].busy_seconds > 0.01


def test_a_stuck_thread_is_reported_until_a_master_has_heard_it(master, standing, caplog):
    """Its stacks are logged once."""
    progress = Progress()
    standing(progress.watch, "feed", RECORDS)
    wait_stuck(progress.watch, 0.01)
    heartbeat = Heartbeat(master.connection, progress, 3, 1, 0.1)
    master.ready = False
    while not master.refused:
        heartbeat.beat()
    heartbeat.beat()
    assert not master.failures
    assert sum("All threads" in text for text in caplog.messages) == 1
    master.ready = True
    while not master.failures:
        heartbeat.beat()
    heartbeat.beat()
    assert len(master.failures) == 1


def test_a_read_that_hangs_is_the_storages_and_no_records(master, standing):
    progress = Progress()
    standing(progress.watch, "reading", RECORDS, storage=True)
    wait_stuck(progress.watch, 0.01)
    beating(master, progress).beat()
    (report,) = master.failures
    assert report.failure.kind == pb.STORAGE
    assert not report.failure.HasField("range")


@pytest.mark.parametrize("excuse", ["storage", "server"])
def test_who_waits_for_storage_or_a_server_is_not_stuck(master, standing, excuse):
    progress = Progress()
    standing(progress.watch, "the pull", RECORDS)
    age(progress.watch)
    heartbeat = beating(master, progress)
    if excuse == "storage":
        progress.waits_for("storage: part-3: timed out")
    else:
        heartbeat.excused = lambda: True
    heartbeat.beat()
    assert progress.watch.oldest()[0] < 3600.0
    assert master.beats[0].busy_seconds < 3600.0


ORPHAN = """
import logging, threading
from shoal.proto.channels.rpc import Connection
from shoal.worker.reports.heartbeat import Heartbeat
from shoal.worker.reports.progress import Progress

logging.basicConfig()
progress = Progress()
master = Connection("127.0.0.1:1", deadline=1.0, cancelled=progress.stopped)
Heartbeat(master, progress, 3, 1, 0.01, 0.05, leave_seconds=0.05).start()

def feed_of_the_user():
    threading.Event().wait()

feed_of_the_user()
"""


def test_a_stuck_worker_that_no_master_is_left_to_kill_ends_itself():
    """With the reason, and where its threads stand, in its log."""
    ended = subprocess.run([sys.executable, "-c", ORPHAN], stderr=subprocess.PIPE, text=True)
    assert ended.returncode == EXIT_JOB_FAILED
    assert "leaving the job: the master has not answered" in ended.stderr
    assert "no master is there to end it" in ended.stderr
    assert "in feed_of_the_user" in ended.stderr


def test_a_worker_tells_its_stacks_at_once_and_once_a_question(master, standing):
    progress = Progress()
    standing(progress.watch, "feed", RECORDS)
    heartbeat = beating(master, progress)
    heartbeat.beat()
    assert not master.beats[-1].HasField("stacks")
    master.stacks_wanted = 17
    for _ in range(2):
        heartbeat.beat()
    told = [beat.stacks for beat in master.beats if beat.HasField("stacks")]
    assert [each.question for each in told] == [17]
    assert (told[0].process, told[0].incarnation) == ("worker-3", 1)
    assert any("standing" in each.names for each in told[0].stacks)
    master.stacks_wanted = 18
    heartbeat.beat()
    assert master.beats[-1].stacks.question == 18
