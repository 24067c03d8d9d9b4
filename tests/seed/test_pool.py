"""Seeds, and processes that they fork, beside executed ones."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from shoal.base.disk.job_folder import JobFolder
from shoal.client.found.processes import job_processes, kill_job
from shoal.errors import UserError
from shoal.seed import pool, starting
from shoal.seed.kinds import KINDS, SERVING, seed_name
from shoal.seed.pool import Pool
from tests.waiting import until

pytestmark = pytest.mark.slow

OBSERVED = "tests.seed.observed"


@pytest.fixture
def folder():
    """A folder with a short path, for sockets; seeds end when it is gone."""
    path = Path(tempfile.mkdtemp(prefix="shoal-test-"))
    yield path
    for each in list(STARTED):
        os.kill(each.process.pid, signal.SIGKILL)
        each.status()
    for each in path.rglob("*.pid"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(each.read_text()), signal.SIGKILL)
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def seeds(folder, monkeypatch):
    """A pool whose seeds fork tests/seed/observed.py."""
    monkeypatch.setitem(KINDS, OBSERVED, SERVING)
    made = folder / "pool"
    made.mkdir(mode=0o700)
    return Pool(made)


STARTED = []


class Started:
    """A process of tests/seed/observed.py."""

    def __init__(self, folder, name, seeds, *what, **environment):
        self.told = folder / f"{name}.json"
        self.log = folder / f"{name}.log"
        arguments = ["-m", OBSERVED, str(self.told), *what]
        with self.log.open("wb") as log:
            self.process = starting.prepared(arguments, os.environ | environment, seeds)(log)
        self.forked = bool(self.process.seed)
        STARTED.append(self)

    def observed(self):
        until("what the process says", self.told.exists)
        return json.loads(self.told.read_text())

    def status(self):
        assert self.process.wait(60)
        STARTED.remove(self)
        return self.process.reap()


def seed_pid(seeds, environment=os.environ):
    return int((seeds.path / f"{seed_name(SERVING, environment)}.pid").read_text())


def ended(pid):
    return not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text()


def test_a_forked_process_sees_what_an_executed_one_sees(folder, seeds):
    two = [
        Started(folder, name, each, "exit", "0", SHOAL_PROCESS="worker-3", TMPDIR=str(folder))
        for name, each in (("number-1", seeds), ("number-2", None))
    ]
    assert [each.forked for each in two] == [True, False]
    texts = []
    for each in two:
        assert each.observed().pop("pid") == each.process.pid
        assert each.status() == 0
        assert each.log.read_text() == "said\n"
        texts.append(each.told.read_text().replace(each.told.stem, "NAME"))
    forked, executed = map(json.loads, texts)
    for told in (forked, executed):
        del told["pid"], told["drawn"]
        told["environment"].pop("GRPC_SSL_CIPHER_SUITES", None)  # those who serve have their own
        for line in list(told["environment in C"]):
            if line.startswith("GRPC_SSL_CIPHER_SUITES="):
                told["environment in C"].remove(line)
    for name, seen in executed.items():
        assert forked[name] == seen, name


def test_forked_processes_draw_different_numbers(folder, seeds):
    drawn = [
        Started(folder, name, seeds, "exit", "0").observed()["drawn"] for name in ("one", "two")
    ]
    assert drawn[0][0] != drawn[1][0]
    assert drawn[0][1] != drawn[1][1]


def test_exit_codes_and_signals_are_told(folder, seeds):
    assert Started(folder, "code", seeds, "exit", "7").status() == 7
    broken = Started(folder, "broken", seeds, "raise")
    assert broken.status() == 1
    assert broken.log.read_text().endswith("ValueError: as any program may\n")
    waits = Started(folder, "waits", seeds, "wait")
    waits.observed()
    os.kill(waits.process.pid, signal.SIGTERM)
    assert waits.status() == -signal.SIGTERM


def test_a_process_that_has_ended_keeps_its_id_until_it_is_reaped(folder, seeds):
    started = Started(folder, "one", seeds, "exit", "3")
    pid = started.process.pid
    assert started.process.wait(60)
    assert Path(f"/proc/{pid}").exists()
    assert started.status() == 3
    until("its id to be free", lambda: not Path(f"/proc/{pid}").exists())


ASKS = """
import os, signal, sys
from pathlib import Path
from shoal.seed import pool
arguments = ["-m", "tests.seed.observed", sys.argv[2], "wait"]
output = os.open(os.devnull, os.O_WRONLY)
connection = pool.Pool(Path(sys.argv[1])).ready("serving", os.environ)
if sys.argv[3] == "stopped":
    os.kill(int(next(Path(sys.argv[1]).glob("*.pid")).read_text()), signal.SIGSTOP)
    pool.answered = lambda _: os._exit(0)
print(pool.fork(connection, arguments, os.environ, os.getcwd(), (output, output)))
"""


def asked_and_gone(seeds, told, when):
    """What a process prints that asks for another one, and ends; stopped: its seed stands still."""
    line = [sys.executable, "-c", ASKS, str(seeds.path), str(told), when]
    root = Path(__file__).parents[2]
    return subprocess.run(line, check=True, cwd=root, capture_output=True, text=True).stdout


@pytest.mark.parametrize(("ignored", "same"), [("INT", True), ("TERM", True), ("HUP", False)])
def test_a_command_in_the_background_has_the_seeds_of_its_master(ignored, same):
    """A script's shell has such a command ignore SIGINT, which its master handles."""
    told = f"from shoal.seed.kinds import seed_name; print(seed_name({SERVING!r}, {{}}))"
    names = [
        subprocess.check_output(["sh", "-c", f'{trap} exec "$0" -c "$1"', sys.executable, told])
        for trap in ("", f"trap '' {ignored};")
    ]
    assert (names[0] == names[1]) == same


def test_the_status_is_told_to_who_takes_a_process_over(folder, seeds):
    pid = int(asked_and_gone(seeds, folder / "told", "").splitlines()[0])
    seed = str(seeds.path / seed_name(SERVING, os.environ))
    second = starting.taken_over(pid, seed)
    os.kill(pid, signal.SIGKILL)
    assert second.wait(60)
    until("the seed to have seen it", lambda: not Path(f"/proc/{pid}").exists())
    assert second.reap() == -signal.SIGKILL
    assert pool.status_of(seed, pid) == -signal.SIGKILL
    assert pool.status_of(seed, os.getpid()) is None


def test_a_killed_seed_leaves_its_processes_and_another_takes_its_place(folder, seeds):
    first = Started(folder, "one", seeds, "wait")
    first.observed()
    seed = seed_pid(seeds)
    os.kill(seed, signal.SIGKILL)
    until("its end", lambda: ended(seed))
    assert Started(folder, "two", seeds, "exit", "4").status() == 4
    assert seed_pid(seeds) != seed
    os.kill(first.process.pid, signal.SIGKILL)
    assert first.status() is None


def test_a_seed_that_hangs_is_killed_and_the_process_executed(folder, seeds, monkeypatch, caplog):
    Started(folder, "one", seeds, "exit", "0").status()
    seed = seed_pid(seeds)
    os.kill(seed, signal.SIGSTOP)
    monkeypatch.setattr(pool, "READY_SECONDS", 0.5)
    two = Started(folder, "two", seeds, "exit", "5")
    assert not two.forked
    assert two.status() == 5
    assert "the seed for them cannot be used: it has not answered within 0.5 s" in caplog.text
    until("its end", lambda: ended(seed))


def test_processes_whose_imports_may_differ_have_different_seeds(folder, seeds):
    names = [
        Started(folder, str(index), seeds, "exit", "0", **environment).process.seed
        for index, environment in enumerate(
            ({}, {"SHOAL_PROCESS": "ps-1"}, {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"})
        )
    ]
    assert names[0] == names[1]
    assert len(set(names)) == 3


def test_a_library_that_starts_threads_is_executed_and_said(folder, seeds, caplog):
    (folder / "sitecustomize.py").write_text(
        "import os, threading\n"
        "thread = threading.Thread(target=threading.Event().wait, daemon=True)\n"
        "os.register_at_fork(after_in_child=thread.start)  # the seed is forked itself\n"
    )
    for name in ("one", "two"):
        started = Started(folder, name, seeds, "exit", "6", PYTHONPATH=str(folder))
        assert not started.forked
        assert started.status() == 6
    assert caplog.text.count("cannot be used: RuntimeError: these threads have started") == 2
    assert len(list(seeds.path.glob("*.refused"))) == 1


def test_a_seed_that_cannot_import_is_left_out_and_said(folder, seeds, caplog):
    (folder / "grpc.py").write_text("raise ImportError('it is damaged')\n")
    started = Started(folder, "one", seeds, "exit", "0", PYTHONPATH=str(folder))
    assert not started.forked
    assert started.status() == 0
    assert "ImportError: it is damaged" in caplog.text or "it has ended" in caplog.text


def test_a_command_line_that_is_too_long_is_executed(folder, seeds, caplog):
    started = Started(folder, "one", seeds, "exit", "0", *["x" * 100] * 100)
    assert not started.forked
    started.status()
    assert "has no room in that of the seed" in caplog.text


def test_who_has_gone_gets_no_process(folder, seeds):
    """A master may be killed while its seed imports: nothing must begin to run without it."""
    asked_and_gone(seeds, folder / "told", "stopped")
    os.kill(seed_pid(seeds), signal.SIGCONT)
    next_one = Started(folder, "next", seeds, "exit", "0")
    assert next_one.forked
    assert next_one.status() == 0
    assert not (folder / "told").exists()


def test_seeds_end_with_their_folder(folder, seeds):
    Started(folder, "one", seeds, "exit", "0").status()
    seed = seed_pid(seeds)
    shutil.rmtree(seeds.path)
    until("the end of the seed", lambda: ended(seed))


def test_a_jobs_own_seed_is_one_of_its_processes(folder, monkeypatch):
    monkeypatch.setitem(KINDS, OBSERVED, SERVING)
    job = JobFolder(folder / "job")
    seeds = Pool(folder, job.config)
    assert Started(folder, "one", seeds, "exit", "0").status() == 0
    with seeds.ready(SERVING, os.environ):  # it ends two seconds after its last user
        assert job_processes(job.config) == [seed_pid(seeds)]
        assert kill_job(job.config) == 1


def test_the_variable_says_where_seeds_are(folder, monkeypatch):
    job = JobFolder(folder / "job")
    monkeypatch.setenv(pool.VARIABLE, "off")
    assert Pool.of(job) is None
    monkeypatch.setenv(pool.VARIABLE, str(folder / "new"))
    made = Pool.of(job)
    assert made.path == folder / "new"
    assert made.path.stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv(pool.VARIABLE)
    assert Pool.of(job) is None  # the job has no temporary folder


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda path: path.mkdir(mode=0o755), "must be a folder that nobody but you can enter"),
        (lambda path: path.write_text(""), "cannot be made"),
        (lambda path: path.parent.chmod(0o500), None),
    ],
)
def test_a_folder_that_cannot_be_used_is_an_error_that_names_the_variable(
    folder, monkeypatch, make, told
):
    path = folder / "pool"
    make(path)
    monkeypatch.setenv(pool.VARIABLE, str(path))
    if told is None and os.geteuid() == 0:
        return
    with pytest.raises(UserError, match=f"SHOAL_SEED: .*{told or 'cannot be made'}"):
        Pool.of(JobFolder(folder))


def test_a_path_that_is_too_long_is_an_error_that_names_the_variable(folder, monkeypatch):
    monkeypatch.setenv(pool.VARIABLE, str(folder / ("x" * 100)))
    with pytest.raises(UserError, match=r"SHOAL_SEED: the path .* is too long for Unix sockets"):
        Pool.of(JobFolder(folder))


@pytest.mark.parametrize("where", ["pool", "off"])
def test_a_program_is_run_to_its_end(folder, monkeypatch, where):
    monkeypatch.setitem(KINDS, OBSERVED, SERVING)
    monkeypatch.setenv(pool.VARIABLE, "off" if where == "off" else str(folder / "pool"))
    told = folder / "told"
    done = starting.run(["-m", OBSERVED, str(told), "raise"], captured=True)
    assert (done.returncode, done.stdout) == (1, "said\n")
    assert done.stderr.endswith("ValueError: as any program may\n")
    assert bool(list(folder.glob("pool/*.pid"))) == (where == "pool")
