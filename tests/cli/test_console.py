"""Control characters in a job's own text do not reach the terminal."""

import io

import pytest
from rich.text import Text

from shoal.client.console import PlainConsole, plain
from shoal.client.display import LineDisplay
from shoal.client.report import print_report
from shoal.client.stacks import stacks_lines
from shoal.client.top import Seen, page
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
