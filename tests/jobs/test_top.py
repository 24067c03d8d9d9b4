"""`shoal top` in a real terminal, beside a real job."""

import contextlib
import os
import pty
import re
import subprocess
import sys
import termios
import threading

import pytest

from tests.jobs.running import RunningJob, completed, until

pytestmark = pytest.mark.job


class Terminal:
    """A pseudo terminal in which a command runs; `text` is all that it has shown."""

    def __init__(self, *line):
        self._ours, self.theirs = pty.openpty()
        termios.tcsetwinsize(self.theirs, (40, 120))
        self.shown = bytearray()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shoal", *line],
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env={**os.environ, "TERM": "xterm-256color"},
            start_new_session=True,
        )

    def _read(self):
        with contextlib.suppress(OSError):  # the terminal's other end was closed
            while piece := os.read(self._ours, 4096):
                self.shown.extend(piece)

    @property
    def text(self):
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.shown.decode(errors="replace"))

    def press(self, keys):
        os.write(self._ours, keys)

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.theirs)
        self._reader.join()
        os.close(self._ours)


@pytest.fixture
def top():
    """Run `shoal top` in a terminal that is closed after the test."""
    made = []

    def run(*line):
        made.append(Terminal("top", *line))
        return made[-1]

    yield run
    for terminal in made:
        terminal.close()


def echoes(terminal):
    """Whether typed keys are shown, as in a shell."""
    return bool(termios.tcgetattr(terminal.theirs)[3] & termios.ECHO)


def test_a_job_is_watched_in_a_terminal_until_q_and_until_it_ends(numbered, tmp_path, top):
    with RunningJob(
        "train",
        tmp_path,
        "watched",
        environment={"GATES": "step-3"},
        model_def="counting.custom_model",
        training_data=numbered[0],
        batch_size=10,
        servers="2",
    ) as job:
        job.at_gate("step-3")
        quits, stays = top(str(job.folder.path)), top(str(job.folder.path))
        for terminal in (quits, stays):
            until("the page", lambda t=terminal: "worker-0" in t.text and "ps-1" in t.text)
            until(
                "rates", lambda t=terminal: re.search(r"ps-0 +alive +\d+ +[\d.]+ \w+ +\d", t.text)
            )
        assert "watched" in quits.text
        # Or, where the gate has held it for a minute, the records that it stands at.
        until("the task", lambda: re.search(r"train \d|waiting for the step of", quits.text))
        assert not echoes(quits)
        quits.press(b"xq")
        assert quits.process.wait(60) == 0
        assert echoes(quits)

        # Where there is no terminal it is printed once.
        done = completed([sys.executable, "-m", "shoal", "top", str(job.folder.path)])
        assert done.returncode == 0, done.stderr
        # Its row; other lines name it too if it has stood at the gate for long.
        assert len(re.findall(r"^ *worker-0 +alive", done.stdout, re.MULTILINE)) == 1
        assert "q: quit" not in done.stdout

        job.open("step-3")
        job.ended().succeeded()
        assert stays.process.wait(60) == 0
        assert "has ended: succeeded; see shoal status" in stays.text
