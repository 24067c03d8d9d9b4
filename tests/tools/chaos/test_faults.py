"""What may be asked of shoal chaos, and what is drawn from a seed."""

import itertools
import math
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import master, ps, worker
from shoal.cli.chaos import OPTIONS
from shoal.errors import UserError
from shoal.proto.faults import POINTS
from shoal.tools import counting
from shoal.tools.chaos.faults import (
    CUT,
    FIRST,
    LAST,
    DisturbStorage,
    Hang,
    Kill,
    LeaveNoRoom,
    SendHalves,
    Target,
    When,
    drawn,
    random_kills,
)
from shoal.tools.chaos.parsing import (
    parse_cut,
    parse_fill,
    parse_half_sent,
    parse_hang,
    parse_kill,
    parse_no_room,
    parse_pause,
    parse_storage,
)

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "chaos.md"


def kill(text):
    return parse_kill(text, workers=2, servers=3)


def test_kills():
    assert kill("worker:1@step=200") == Kill((Target("worker", 1),), When(step=200))
    assert kill("ps:2@random") == Kill((Target("ps", 2),), When(random=True))
    assert kill("master@phase=evaluating").when == When(phase="evaluating")
    assert kill("master@point=before-journal").when == When(point="before-journal")
    assert kill("ps:0@point=shard-begun,step=7").when == When(step=7, point="shard-begun")


def test_kills_of_the_whole_job():
    fault = kill("job@step=9,flip=journal,remove=log,servers=3,workers=1")
    assert (fault.targets, fault.when) == ((Target("job"),), When(step=9))
    assert fault.damage == (("flip", "journal"), ("remove", "log"))
    assert fault.changes == (("servers", "3"), ("workers", "1"))
    assert str(fault) == "kill job, flip journal, remove log, --servers 3, --workers 1"
    assert kill("job@phase=exporting").damage == kill("ps:0@step=9").damage == ()


def test_pauses_and_cuts():
    fill = parse_fill("master@step=100,seconds=2", 2, 3)
    assert (fill.kind, fill.targets, fill.seconds) == ("fill", (Target("master"),), 2.0)
    pause = parse_pause("ps:0@step=100,seconds=2.5", 2, 3)
    assert (pause.targets, pause.when, pause.seconds) == ((Target("ps", 0),), When(step=100), 2.5)
    cut = parse_cut("ps:1-worker:0@random,seconds=3", 2, 3)
    assert (cut.kind, cut.targets) == (
        CUT,
        (Target("worker", 0), Target("ps", 1)),
    )  # who calls first
    assert parse_cut("master-ps:1@random,seconds=3", 2, 3).targets[0] == Target("ps", 1)
    assert parse_cut("ps:0-ps:1@random,seconds=3", 2, 3).targets == (
        Target("ps", 0),
        Target("ps", 1),
    )


def test_what_hangs_fails_or_finds_no_room():
    hang = parse_hang("worker:1@point=feeding,step=60,seconds=30", 2, 3)
    when = When(step=60, point="feeding")
    assert hang == Hang((Target("worker", 1),), when, 30.0)
    assert str(hang) == "hang worker:1 for 30 s"
    ever = parse_hang("worker:1@point=computing,step=60,seconds=inf", 2, 3)
    assert (ever.seconds, str(ever)) == (math.inf, "hang worker:1 for ever")
    assert parse_hang("master@step=9,seconds=1", 2, 3).when == When(step=9)
    storage = parse_storage("data@step=100,fail=3,seconds=5", 2, 3)
    assert storage == DisturbStorage((Target("data"),), When(step=100), 5.0, how="fail", every=3)
    assert str(storage) == "storage data for 5 s, fail every 3"
    assert parse_storage("checkpoints@random,hang=1,seconds=5", 2, 3).how == "hang"
    half = parse_half_sent("ps:2@step=7,seconds=2,count=3", 2, 3)
    assert half == SendHalves((Target("ps", 2),), When(step=7), 2.0, count=3)
    assert str(half) == "half-sent ps:2 for 2 s, 3 requests"
    assert parse_half_sent("ps:2@step=7,seconds=2", 2, 3).count == 8
    room = parse_no_room("ps:1@random,seconds=20", 2, 3)
    assert room == LeaveNoRoom((Target("ps", 1),), When(random=True), 20.0)


@pytest.mark.parametrize(
    ("parse", "text", "told"),
    [
        (parse_kill, "worker:0", "the time is missing.*step=N.*random.*phase=NAME.*point=NAME"),
        (parse_kill, "worker:0@", "the time is missing"),
        (
            parse_kill,
            "@step=1",
            "nothing is not a process of a job. There are worker:0 to worker:1",
        ),
        (parse_kill, "sever:0@step=1", "sever:0 is not a process.*ps:0 to ps:2 and master"),
        (parse_kill, "worker@step=1", "worker lacks the number of the worker"),
        (parse_kill, "ps:3@step=1", "the job has no ps:3: --servers is 3"),
        (parse_kill, "master:1@step=1", "there is one master"),
        (parse_kill, "ps:0@stpe=1", "stpe is not a time. WHEN is step=N"),
        (parse_kill, "ps:0@step=soon", "step=soon is not a number"),
        (parse_kill, "ps:0@step=1,random", "step and random are two times"),
        (parse_kill, "ps:0@step=1,step=2", "step is given twice"),
        (parse_kill, "ps:0@random=3", "random takes no value.*--chaos-seed"),
        (parse_kill, "ps:0@phase=training-hard", "phase=training-hard is not known.*evaluating"),
        (
            parse_kill,
            "ps:0@point=before-journal",
            "not known. The points of a ps: before-restore-plan",
        ),
        (parse_kill, "ps:0@step=1,seconds=3", "seconds is not a time"),
        (parse_kill, "job@step=1,flip=disk", "flip=disk is not known.*files: journal, log, check"),
        (parse_kill, "job@step=1,servers=0", "servers=0 is not a number from 1"),
        (parse_kill, "job@point=push-applied", "point is not a time"),
        (parse_kill, "ps:0@step=1,flip=log", "flip is not a time"),
        (parse_pause, "job@step=1,seconds=1", "job is not a process of a job"),
        (parse_fill, "ps:0@step=1", "the duration is missing"),
        (parse_pause, "ps:0@step=1", "the duration is missing. Add ,seconds=S"),
        (parse_pause, "ps:0@seconds=1", "the time is missing"),
        (parse_pause, "ps:0@step=1,seconds=-1", "seconds=-1 is not a number above 0"),
        (parse_pause, "ps:0@step=1,seconds=nan", "seconds=nan is not a number above 0"),
        (parse_pause, "ps:0@point=push-applied,seconds=1", "point is not a time"),
        (parse_cut, "worker:0@step=1,seconds=1", "a cut is between two.*worker:0-ps:1"),
        (parse_cut, "worker:0-worker:1@step=1,seconds=1", "never talk to each other"),
        (parse_cut, "master-master@step=1,seconds=1", "never talk to each other"),
        (parse_hang, "worker:0@step=1,seconds=1", "nobody calls a worker: it hangs at a point"),
        (parse_hang, "worker:0@point=feeding", "the duration is missing"),
        (parse_hang, "ps:0@point=feeding,seconds=1", "not known. The points of a ps:"),
        (parse_hang, "ps:0@step=1,seconds=inf", "seconds=inf is not a number above 0"),
        (
            parse_storage,
            "disk@step=1,seconds=1,fail=1",
            "disk is not a storage. There are data, checkpoints, output",
        ),
        (parse_storage, "data@step=1,seconds=1", "the kind of failure is missing. Add ,fail=N or"),
        (parse_storage, "data@step=1,seconds=1,fail=2,hang=2", "the kind of failure is missing"),
        (parse_storage, "data@step=1,seconds=1,fail=0", "fail=0 is not a number from 1"),
        (parse_storage, "data@step=1,fail=2", "the duration is missing"),
        (parse_half_sent, "worker:0@step=1,seconds=1", "sent to a ps, not worker:0"),
        (parse_half_sent, "ps:0@step=1,seconds=1,count=no", "count=no is not a number from 1"),
        (parse_no_room, "master@step=1,seconds=1", "starts a worker or a ps, not master"),
        (parse_no_room, "ps:0@point=before-checkpoint-read,seconds=1", "point is not a time"),
    ],
)
def test_a_wrong_text_is_named_with_what_is_possible(parse, text, told):
    flag = f"--{parse.__name__.removeprefix('parse_').replace('_', '-')}"
    with pytest.raises(UserError, match=f"^{flag} {re.escape(text)}: .*{told}"):
        parse(text, 2, 3)


@given(st.integers(1, 60), st.integers(), st.integers(1, 4), st.integers(1, 4))
def test_random_kills_follow_from_the_seed(count, seed, workers, servers):
    faults = random_kills(count, seed, workers, servers)
    assert faults == random_kills(count, seed, workers, servers)
    moments = [fault.when.fraction for fault in faults]
    assert moments == sorted(moments)
    assert moments[0] >= FIRST
    assert moments[-1] <= LAST
    targets = Counter((fault.when.fraction, fault.targets) for fault in faults)
    for (_, (target,)), _ in targets.items():
        assert target.index < {"worker": workers, "ps": servers, "master": 1}[target.role]
    # What comes together meets two processes.
    for one, other in itertools.pairwise(faults):
        assert one.when != other.when or one.targets != other.targets


def test_random_kills_meet_every_role_and_some_come_together():
    faults = random_kills(200, 7, 2, 2)
    roles = Counter(fault.targets[0].role for fault in faults)
    assert min(roles.values()) > 40
    together = 200 - len({fault.when.fraction for fault in faults})
    assert 25 < together < 75
    assert faults != random_kills(200, 8, 2, 2)


def test_only_what_is_to_be_random_is_drawn():
    asked = [kill("ps:0@step=3"), kill("ps:1@random"), kill("worker:0@point=task-done,random")]
    fixed, *random = drawn(asked, 5)
    assert fixed == asked[0]
    assert [fault.targets for fault in random] == [fault.targets for fault in asked[1:]]
    assert all(FIRST <= fault.when.fraction <= LAST for fault in random)
    assert random[1].when.point == "task-done"
    assert drawn(asked, 5) != drawn(asked, 6)


def test_the_points_are_those_in_the_code():
    found = {
        # What counts, workers do.
        (name, package.__name__.rpartition(".")[2].replace("counting", "worker"))
        for package in (master, ps, worker, counting)
        for path in Path(package.__path__[0]).rglob("*.py")
        for name in re.findall(r'faults\.point\("([\w-]+)"[,)]', path.read_text())
    }
    assert found == {(name, point.role) for name, point in POINTS.items()}


# tox tests the wheel, beside which there is no docs folder.
@pytest.mark.skipif(not PAGE.parent.is_dir(), reason="the docs are not beside the tests")
def test_the_guide_names_every_point_and_flag():
    text = PAGE.read_text()
    for name, point in POINTS.items():
        assert f"| `{name}` | {point.role} | {point.where} |" in text
    for option in OPTIONS:
        (name,) = option(lambda: None).__click_params__[0].opts
        assert f"| `{name}" in text
