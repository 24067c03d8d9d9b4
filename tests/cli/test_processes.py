"""Which processes are taken for a job's, and ended with it."""

import signal
import subprocess
import sys

from shoal.base.command_lines import command_line
from shoal.client.found.following import Interruptions
from shoal.client.found.processes import job_processes, kill_job
from shoal.client.found.usage import machine, usage_of

BUSY = (
    "import sys, time\nwhile time.process_time() < 0.05: pass\nprint(flush=True); sys.stdin.read()"
)
WAITS = "import sys; print(flush=True); sys.stdin.read()"


def test_a_program_that_was_given_a_jobs_file_is_none_of_its_processes(tmp_path):
    path = tmp_path / "job.json"
    with subprocess.Popen(
        [sys.executable, "-c", WAITS, "--config", str(path), "-m", "shoal.master"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:
        program.stdout.readline()
        assert job_processes(path) == []
        assert kill_job(path) == 0
        program.stdin.close()
        assert program.wait() == 0


def test_a_process_is_known_though_its_parent_died_when_it_had_just_started_it(tmp_path):
    """Without a look again, one of ten has no arguments yet when its parent goes on."""
    own = ["sh", "-c", "read line", "sh", "-m", "shoal.worker", "--config", str(tmp_path / "job")]
    for _ in range(50):
        with subprocess.Popen(own, stdin=subprocess.PIPE) as process:
            assert command_line(process.pid)[3:] == [each.encode() for each in own[3:]] + [b""]
            process.stdin.close()


def test_processes_of_a_job_tell_what_they_use(tmp_path):
    path = tmp_path / "job.json"
    line = [
        sys.executable,
        "-c",
        BUSY,
        "-m",
        "shoal.worker",
        "--index",
        "3",
        "--config",
        str(path),
    ]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        program.stdout.readline()
        ((name, used),) = usage_of(path).items()
        assert (name, used.course) == ("worker-3", program.pid)
        assert used.cpu_seconds >= 0.03
        program.stdin.close()
    of_all, cores, memory = machine()
    assert cores > 0
    assert 1_000_000 < used.memory < of_all.memory < memory


def test_a_terminal_that_closes_tells_so_twice_and_the_job_is_stopped_once():
    with Interruptions() as interruptions:
        for _ in range(2):
            signal.raise_signal(signal.SIGHUP)
        assert interruptions.count == 1
        signal.raise_signal(signal.SIGINT)
        assert interruptions.count == 2
