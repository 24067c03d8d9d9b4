"""The flame graph as a picture, and the stacks that py-spy writes."""

import xml.etree.ElementTree as ET

import pytest

from shoal.client import profile
from shoal.client.flame import HEAD, MARGIN, ROW, WIDTH, Call, flame_graph
from shoal.client.profile import Profile, raw_stacks, spied, write_graph
from shoal.errors import UserError

SVG = "{http://www.w3.org/2000/svg}"
MAIN, STEP, READ = Call("main", "thread"), Call("step (m.py)", "own"), Call("read (io)", "library")


def boxes(text):
    """{title: (left, top, width, kind)} of all calls that are drawn."""
    root = ET.fromstring(text)
    found = {}
    for group in root.iter(f"{SVG}g"):
        rect = group.find(f"{SVG}rect")
        place = [float(rect.get(name)) for name in ("x", "y", "width")]
        found[group.find(f"{SVG}title").text] = (*place, rect.get("class"))
    return found


def test_a_call_is_below_its_caller_and_as_wide_as_its_share():
    text = flame_graph("t", [((MAIN, STEP), 30), ((MAIN, READ), 10), ((MAIN, STEP), 0)], "note")
    whole = WIDTH - 2 * MARGIN
    assert boxes(text) == {
        "main: 40 of 40 samples, 100.0%": (MARGIN, HEAD, whole, "thread"),
        "read (io): 10 of 40 samples, 25.0%": (MARGIN, HEAD + ROW, whole / 4, "library"),
        "step (m.py): 30 of 40 samples, 75.0%": (
            *(MARGIN + whole / 4, HEAD + ROW, whole * 3 / 4),
            "own",
        ),
    }
    # Nothing is fetched, and nothing runs.
    assert not any(word in text for word in ("<script", "href", "url(", "onclick"))


def test_names_are_text_and_what_is_too_narrow_is_left_out():
    evil = Call('<script>alert("1")</script> & more', "own")
    text = flame_graph('a "title" <b>', [((evil,), 10_000), ((STEP,), 1)])
    (title,) = boxes(text)
    assert title.startswith('<script>alert("1")</script> & more: 10,000 of 10,001')
    assert "<script" not in text
    assert ET.fromstring(text).get("aria-label") == 'a "title" <b>'


def test_without_a_sample_there_is_a_picture_that_says_so():
    assert boxes(flame_graph("idle", [], "0 stacks")) == {}


def test_what_py_spy_writes():
    lines = [
        "process 7:x;thread (4097): step;feed (/home/me/model.py:12);load (numpy/x.py:3) 41",
        "thread (0x7F);_worker (concurrent/futures/thread.py:83) 2",
        "half a line",
    ]
    first, second = raw_stacks(lines)
    assert first == (
        (
            Call("process 7:x", "library"),
            Call("step", "thread"),
            Call("feed (model.py)", "own"),
            Call("load (x.py)", "library"),
        ),
        41,
    )
    assert second == ((Call("thread", "thread"), Call("_worker (thread.py)", "library")), 2)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    path = tmp_path / "none" / "graph.svg"
    with pytest.raises(UserError, match=f"--output: {path} cannot be written: No such file"):
        write_graph(path, "t", Profile([], "looks"))


def test_a_py_spy_that_hangs_is_given_up(tmp_path, monkeypatch):
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(profile, "SPY_SECONDS", 0.1)
    assert spied(1, 0.0) == "py-spy has not ended 0.1 s after its time"
