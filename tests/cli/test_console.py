"""Control characters in a job's own text do not reach the terminal."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from rich.text import Text

from shoal.cli.analyze import analyze
from shoal.client.show.console import PlainConsole
from shoal.client.show.display import LineDisplay
from shoal.client.show.plain import plain
from shoal.client.show.report import print_report
from shoal.client.show.top import Seen, page
from shoal.client.stacks import stacks_lines
from shoal.proto import shoal_pb2 as pb
from shoal.result import JobResult

EVIL = "a\x1b]0;owned\x07b\x9b2Jc\x7f\rd"
HARMLESS = "a]0;ownedb2Jcd"


def drawn(part, **how):
    stream = io.StringIO()
    PlainConsole(file=stream, width=200, **how).print(part)
    return stream.getvalue()


def controls(text):
    return {each for each in text if (each < " " and each != "\n") or "\x7f" <= each < "\xa0"}


def test_all_that_top_draws_of_a_job_is_harmless():
    seen = Seen()
    worker = pb.WorkerView(worker=0, state="alive", waits_for=EVIL)
    server = pb.ServerView(server=0, state="starting", progress=EVIL)
    told = {"job_name": EVIL, "trouble": EVIL, "messages": [EVIL], "waits_for": EVIL}
    seen.add(pb.JobStatus(state="training", workers=[worker], servers=[server], **told), 1.0)
    text = drawn(page(seen, 50, EVIL))
    assert not controls(text)
    assert text.count(HARMLESS) >= 6


def test_all_that_stacks_print_of_a_process_is_harmless():
    frame = pb.StackFrame(where=EVIL, line=1, function=EVIL, code=EVIL, own=True)
    stacks = pb.ThreadStacks(threads=1, names=[EVIL], frames=[frame])
    told = [pb.ProcessStacks(process=EVIL, threads=1, stacks=[stacks])]
    told.append(pb.ProcessStacks(process="ps-0", problem=EVIL))
    text = "".join(map(drawn, stacks_lines(told)))
    assert not controls(text)
    assert text.count(HARMLESS) == 6


def test_the_console_keeps_its_own_styles_and_the_ends_of_lines():
    text = drawn(Text("one\ntwo\x1b[31m", style="bold"), force_terminal=True)
    assert text.count("\x1b[1m") == 2
    assert "two[31m" in text
    assert plain("one\n\ttwo") == "one\n\ttwo"


def test_lines_of_a_job_are_harmless():
    stream = io.StringIO()
    LineDisplay(stream).event(EVIL)
    assert stream.getvalue().endswith(f" {HARMLESS}\n")


@pytest.mark.parametrize("kind", ["USER_CODE", "INTERNAL", "USER_ERROR"])
def test_the_report_of_a_failure_is_harmless(capsys, tmp_path, kind):
    failure = {"kind": kind, "message": EVIL, "traceback": f"Traceback:\n{EVIL}"}
    print_report(JobResult(EVIL, "train", "failed", tmp_path, failure=failure, messages=[EVIL]))
    out, err = capsys.readouterr()
    assert not controls(out + err)
    assert HARMLESS in err


def test_the_statistics_of_data_are_harmless(tmp_path, capsys):
    table = pa.table({EVIL: [f"[/b]{EVIL}"] * 2, "[red]n": [1, 2]})
    pq.write_table(table, tmp_path / "data.parquet")
    output = tmp_path / "statistics.json"
    arguments = ["--data", str(tmp_path / "data.parquet"), "--output", str(output)]
    analyze.main(arguments, standalone_mode=False)
    told = capsys.readouterr().out
    assert not controls(told)
    assert "a]0;o" in told
    # Brackets of data are no markup.
    assert "[/b]" in told
    assert "[red]n" in told
    # The file has what the data have.
    assert EVIL in json.loads(output.read_text())["columns"]


def test_an_error_that_quotes_data_is_harmless(tmp_path):
    data, output = str(tmp_path / "data.parquet"), str(tmp_path / "statistics.json")
    pq.write_table(pa.table({EVIL: [1]}), data)
    done = CliRunner().invoke(analyze, ["--data", data, "--output", output, "--columns", "other"])
    assert done.exit_code == 2
    assert "there is no column 'other'" in done.stderr
    assert HARMLESS in done.stderr
    assert not controls(done.output)
