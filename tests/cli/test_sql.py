"""`shoal sql` as it is typed: a file, standard input, and a terminal."""

import os
import pty
import re
import select
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from shoal.cli.live.sql import _code
from shoal.cli.main import main
from shoal.errors import EXIT_JOB_FAILED, UserError
from shoal.result import JobFailedError, JobResult
from shoal.sql.errors import SqlError
from tests.waiting import until


def test_statements_of_a_file_and_of_standard_input(tmp_path):
    text = "CREATE TABLE t AS SELECT 1 AS one;\nSELECT one + 1 AS two FROM t;\n"
    (tmp_path / "a.sql").write_text(text)
    for arguments, given in (([str(tmp_path / "a.sql")], None), ([], text), (["-"], text)):
        done = CliRunner().invoke(main, ["sql", *arguments], input=given)
        assert done.exit_code == 0
        assert re.search(r"two .*│ +2 │", done.stdout, re.DOTALL)
    kept = str(tmp_path / "t.duckdb")
    assert CliRunner().invoke(main, ["sql", "--database", kept], input=text).exit_code == 0
    done = CliRunner().invoke(main, ["sql", "--database", kept], input="SELECT one FROM t")
    assert "│     1 │" in done.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "SELECT 1;\nSELECT a\nFROM nowhere;\nSELECT 2",
            "line 3: Catalog Error: Table with name nowhere does not exist!",
        ),
        ("SELECT\n1, error('found late')", "line 1: Invalid Input Error: found late"),
        ("SELECT 1 TO PREDICT a USING b", "line 1: there is no model b in "),
        ("SELECT 1;\nSHOW TRAIN", "line 2: the name of a model is expected here"),
        ("SELECT 1 TO RUN a", "line 1: TO RUN is not part of shoal: "),
    ],
)
def test_a_mistake_ends_with_two_and_a_caret(text, message, tmp_path):
    done = CliRunner().invoke(main, ["sql", "--models", str(tmp_path)], input=text)
    assert done.exit_code == 2
    lines = done.stderr.splitlines()
    assert lines[0].startswith(f"Error: {message}")
    assert lines[-1].strip() == "^"
    assert "│     2 │" not in done.stdout  # what follows is not run


def test_a_reader_that_has_seen_enough_is_no_mistake_of_the_statement(tmp_path):
    (tmp_path / "t.csv").write_text("a,y\n1,0\n2,1\n3,0\n")
    text = f"SELECT * FROM '{tmp_path}/t.csv' LABEL y INTO m"
    line = [sys.executable, "-m", "shoal", "sql", "--dry-run"]
    with subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        process.stdin.write(text)
        process.stdin.close()
        assert process.stderr.read() == ""


def test_wrong_files_and_databases_are_told(tmp_path):
    (tmp_path / "a.sql").write_bytes(b"SELECT '\xff'")
    for arguments, message in (
        ([str(tmp_path / "none.sql")], "none.sql: No such file"),
        ([str(tmp_path / "a.sql")], "is not in UTF-8"),
        (["--database", "none.db"], "--database: none.db is neither"),
        (["--database", "sqlite:///none.db"], "--database: there is no file none.db"),
    ):
        done = CliRunner().invoke(main, ["sql", *arguments], input="")
        assert (done.exit_code, message in done.stderr) == (2, True), done.stderr


def test_the_exit_code_of_a_job_that_failed_is_the_jobs(tmp_path):
    def error(cause):
        made = SqlError("wrong")
        made.__cause__ = cause
        return made

    result = JobResult.from_json(
        '{"state": "failed", "job_name": "a", "command": "train"}', tmp_path
    )
    assert _code(error(JobFailedError("lost", result))) == EXIT_JOB_FAILED
    assert _code(error(UserError("no"))) == _code(error(None)) == 2


class Terminal:
    """`shoal sql` on a terminal of its own."""

    def __init__(self, folder):
        self.pid, self.file = pty.fork()
        if not self.pid:
            os.chdir(folder)
            os.environ.update(HOME=str(folder), TERM="dumb")
            os.execv(sys.executable, [sys.executable, "-m", "shoal", "sql"])
        self.seen = ""

    def until(self, text):
        """Read until a text has come; returns all since the one before."""
        while text not in self.seen:
            assert select.select([self.file], [], [], 120)[0], self.seen
            try:
                more = os.read(self.file, 65536)
            except OSError:  # the terminal has gone
                more = b""
            assert more, self.seen
            self.seen += more.decode(errors="replace")
        found, _, self.seen = self.seen.partition(text)
        return found + text

    def type(self, text):
        os.write(self.file, text.encode())

    def code(self):
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.file)
        return os.waitstatus_to_exitcode(status)


@pytest.mark.slow
def test_statements_are_typed_at_a_prompt(tmp_path):
    (tmp_path / "people.csv").write_text("age,pay\n1,2\n3,5\n")
    terminal = Terminal(tmp_path)
    terminal.until("shoal> ")
    terminal.type("SELECT sum(age) AS ages\n")
    terminal.until("-> ")
    terminal.type("FROM 'people.csv';\n")
    assert "│      4 │" in terminal.until("shoal> ")
    # A mistake is shown with its caret, and the session goes on.
    terminal.type("SELECT pya FROM 'people.csv';\n")
    shown = terminal.until("shoal> ")
    assert "Error: line 1: Binder Error" in shown
    assert re.search(r"\r\n {9}\^\r\n", shown)
    # Ctrl-C takes back what is typed.
    terminal.type("SELECT 'open\n")
    terminal.until("-> ")
    terminal.type("\x03")
    terminal.until("shoal> ")
    terminal.type("SHOW MODELS;\n")
    assert "there is no model" in terminal.until("shoal> ")
    terminal.type("help\n")
    assert "TO EXPLAIN NAME;" in terminal.until("shoal> ")
    # The line before comes back by its key, as readline has it.
    terminal.type("SELECT 40 + 2 AS answer;\n")
    terminal.until("shoal> ")
    terminal.type("\x10\n")  # Ctrl-P
    assert "│     42 │" in terminal.until("shoal> ")
    terminal.type("\x04")
    assert terminal.code() == 0
    assert "SELECT 40 + 2 AS answer;" in (tmp_path / ".shoal_sql_history").read_text()


@pytest.mark.job
def test_an_interrupt_stops_the_job_and_not_the_session(tmp_path):
    rows = "".join(f"{at % 50},{at % 2}\n" for at in range(1000))
    (tmp_path / "people.csv").write_text(f"age,pay\n{rows}")
    terminal = Terminal(tmp_path)
    terminal.until("shoal> ")
    statement = "SELECT * FROM 'people.csv' TO TRAIN DNNRegressor WITH train.epoch=100000"
    terminal.type(f"{statement} LABEL pay INTO pays;\n")
    terminal.until("job pays: 1 server")
    master = tmp_path / "shoal-models" / ".pays.1" / "job" / "master.json"
    until("the job has begun", master.exists)
    terminal.type("\x03")
    shown = terminal.until("shoal> ")
    assert "the job has not succeeded: the job was stopped" in shown
    terminal.type("SHOW MODELS;\n")
    assert "there is no model" in terminal.until("shoal> ")
    terminal.type("exit\n")
    assert terminal.code() == 0


@pytest.mark.slow
def test_an_interrupt_of_a_file_ends_with_130(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal", "sql"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    long = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range + b.range = -1"
    process.stdin.write(f"SELECT 1 AS one;\n{long};\n")
    process.stdin.close()
    assert "one" in process.stdout.readline() + process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.stdout.read()
    assert process.wait() == 130
    process.stdout.close()
