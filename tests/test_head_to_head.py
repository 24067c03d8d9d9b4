"""The comparison with other systems: its tables, its runs and kills, and a whole small one."""

import importlib
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

# tox tests the wheel, beside which the benchmarks are not.
table = pytest.importorskip("benchmarks.head_to_head.table")
systems = pytest.importorskip("benchmarks.head_to_head.systems")
watch = pytest.importorskip("benchmarks.head_to_head.watch")

ROOT = Path(__file__).parents[1]
PEERS = ROOT / "benchmarks" / "head_to_head" / "peers"
BATCH = 64


def run_of(rate, auc=0.7):
    """A run's line of so many samples/s."""
    figures = {"start_seconds": 1.0, "whole_seconds": 3.0, "peak_mb": 100.0, "versions": {}}
    figures["cpu_seconds"] = 7.0
    return {"records": rate * 2, "seconds": 2.0, "auc": auc, **figures}


def test_a_summary_has_medians_and_shoals_ratios_of_the_same_rounds():
    ours, others = [100, 50, 200], [80, 20, 100]
    lines = table.summary(
        {"other": [*map(run_of, others)], "shoal": [*map(run_of, ours)]},
    )
    assert [line["name"] for line in lines] == ["shoal", "other"]
    assert [line["samples_per_second"] for line in lines] == [100, 80]
    assert lines[0]["spread"] == [50, 200]
    assert "ratio" not in lines[0]
    assert lines[1]["ratio"] == 2.0  # of 1.25, 2.5 and 2


def test_a_run_that_failed_is_told_and_counts_in_no_figure():
    failed = {"failed": "not installed: no such package"}
    lines = table.summary(
        {
            "shoal": [run_of(100), run_of(100)],
            "once": [failed, run_of(50)],
            "never": [failed, failed],
        }
    )
    once, never = lines[1:]
    assert (once["samples_per_second"], once["ratio"], once["runs"]) == (50, 2.0, 1)
    assert once["failed"] == never["failed"] == failed["failed"]
    rows = table.markdown(lines).splitlines()
    assert rows[2].startswith("| shoal | 100 | 100 to 100 |  | 7.0 | 100 | 1.0 | 3.0 | 0.7000 |")
    assert "one run failed: not installed" in rows[3]
    assert rows[4].startswith("| never | failed: not installed: no such package |")


def test_the_table_of_kills_tells_what_is_lost():
    told = {"lost_records": [0, 5]}
    kills = {
        "a": {
            "worker": {"outcome": "goes on", "seconds": 2.04, "trained": 9, "told": told},
            "server": {"outcome": "ends", "seconds": 1.0, "trained": 4096, "said": "Gone"},
        },
        "b": {
            "worker": {"outcome": "hangs", "seconds": 120.0, "trained": 10, "said": ""},
            "server": {"outcome": "not killed", "said": "not installed"},
        },
        "c": {"worker": {"outcome": "goes on", "seconds": 1.0, "trained": 1, "told": {}}},
    }
    rows = table.kills_markdown(kills).splitlines()[2:]
    assert rows == [
        "| a | worker | goes on | 2.0 | 5 |",
        "| a | server | ends: Gone | 1.0 | 4,096: all |",
        "| b | worker | hangs | 120.0 | 10: all |",
        "| b | server | not killed: not installed | | |",
        "| c | worker | goes on | 1.0 | not told |",
    ]


@pytest.fixture(scope="module")
def common():
    """The module that the peers' scripts share, as they import it."""
    sys.path.insert(0, str(PEERS))
    yield importlib.import_module("common")
    sys.path.remove(str(PEERS))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=2, max_size=40))
def test_the_area_under_the_curve_is_the_share_of_pairs_in_order(common, pairs):
    labels, scores = map(np.array, zip(*pairs, strict=True))
    above, below = scores[labels], scores[~labels]
    if len(above) == 0 or len(below) == 0:
        return
    wins = (above[:, None] > below).mean() + (above[:, None] == below).mean() / 2
    assert common.area_under_curve(labels, scores) == pytest.approx(wins)


PEER = """
import json, os, struct, subprocess, sys, time
from pathlib import Path
folder = Path(sys.argv[sys.argv.index("--dir") + 1])
server = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
def train(first, last):
    for i in range(first, last):
        (folder / "part").write_bytes(struct.pack("<q", i * 64))
        os.rename(folder / "part", folder / "progress")
(folder / "roles.json").write_text(json.dumps({"server": server.pid}))
train(0, 100)
server.wait()
"""
ENDS = {
    "goes on": """
train(100, 200)
print(json.dumps({"records": 6400, "seconds": 1.0, "lost_records": 3}))
""",
    "ends": 'sys.exit("ConnectionError: the server has gone")',
    "hangs": "time.sleep(600)",
}


def started(tmp_path, text):
    """A run of a peer with this text."""
    script = tmp_path / "peer.py"
    script.write_text(text)
    system = systems.System("peer", str(script), "server")
    return watch.Run(system, tmp_path, tmp_path / "run", 1000, BATCH, 2, "0,1")


@pytest.mark.parametrize("outcome", ENDS)
def test_a_kill_tells_what_the_peer_makes_of_it(tmp_path, outcome):
    run = started(tmp_path, PEER + textwrap.dedent(ENDS[outcome]))
    limit = 2 if outcome == "hangs" else 60
    found = watch.kill(run, "server", 99 * BATCH, 0.0, BATCH, limit, 60)
    assert found["outcome"] == outcome
    assert found["trained"] == 99 * BATCH
    if outcome == "goes on":
        assert table.lost(found) == "3"
    elif outcome == "ends":
        assert found["said"] == "ConnectionError: the server has gone"


def test_a_peer_that_fails_says_why(tmp_path):
    run = started(tmp_path, "raise ImportError('no such library')")
    assert run.wait(60)
    run.stop()
    assert run.line() == {"failed": "ImportError: no such library"}


@pytest.mark.slow
def test_a_small_comparison_has_a_line_for_each_system(tmp_path):
    output = tmp_path / "head_to_head.json"
    size = ("--ids", "2000", "--records", "16384", "--held", "4096", "--batch", "512")
    peers = ("shoal", "pytorch", "keras")
    command = [
        *(sys.executable, "-m", "benchmarks", "head-to-head", *size, "--warm", "4"),
        *("--rounds", "1", "--systems", *peers, "--output", str(output)),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    case = json.loads(output.read_text())["2000 ids, 16384 records"]
    assert {line["name"] for line in case["summary"]} == set(peers)
    for line in case["summary"]:
        assert "failed" not in line
        assert 0.5 < line["auc"] < 1
        assert line["peak_mb"] > 0
    records = {name: runs[0]["records"] for name, runs in case["rounds"].items()}
    # What is timed: shoal's steps are looked up, and Keras tells of sixteen at a time.
    assert records["pytorch"] == 16384 - 4 * 512
    assert all(0 < each <= 16384 for each in records.values())
