"""`shoal dashboard` as a real process, and what its page would ask it."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.jobs.running import until


class Page:
    """What a page asks its server for. url, port, token: as they were printed in `text`."""

    def __init__(self, text):
        found = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)$", text, re.MULTILINE)
        assert found, text
        self.url, self.port, self.token = found[0], int(found[1]), found[2]
        until("an answer", self._answers)

    def _answers(self):
        try:
            return self.get("/jobs").status == 200
        except ConnectionRefusedError:
            return False

    def request(self, method, path, **headers):
        """The answer, read; without a token of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        answer.body = answer.read().decode()
        connection.close()
        return answer

    def get(self, path):
        """The answer to who has the token."""
        return self.request("GET", path, Cookie=f"shoal_dashboard_{self.port}={self.token}")

    def json(self, path):
        answer = self.get(path)
        assert answer.status == 200, answer.body
        return json.loads(answer.body)

    def wait(self, what, path, holds):
        """The first answer at `path` for which holds(answer)."""

        def look():
            answer = self.json(path)
            return answer if holds(answer) else None

        return until(what, look)

    def assert_ended(self):
        """Nobody serves the page; at its port there may be another process by now."""
        with pytest.raises((OSError, http.client.HTTPException)):
            self.get("/facts")


class Dashboard(Page):
    """The command on a job; a context manager that ends it."""

    def __init__(self, job, folder, *more, **environment):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "shoal", "dashboard", str(job), "--no-open", *more],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def __enter__(self):
        line = self.process.stdout.readline()
        super().__init__(line or self.process.stderr.read())
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def interrupted(self):
        """End it as Ctrl-C does; returns its exit code and what it wrote as errors."""
        self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors
