"""Damaged journals: refused by the file's name, or what they say is what was."""

import collections
import json
import re
import shutil

import pytest
from click.testing import CliRunner

from shoal.master.journal import audit
from shoal.master.journal import journal as journals
from shoal.master.journal.journal import Journal
from shoal.master.journal.reading import read
from shoal.master.journal.segments import Segment
from tests.damage import Damager, outcome, watchdog
from tests.examples import examples
from tests.master.random_jobs import RandomJob, plain
from tests.master.strategies import config

CASES = examples(100)
TORN = ("cut", "zeroed", "empty")
"""What a machine that stops may leave of the end of a file too: nobody was answered because
of that. Whether somebody was is known elsewhere: the journal's position is in the shards."""


def job_with_journal(folder, seed):
    """A job folder with a journal of several segments; the job's events."""
    configuration = config(workers="2", epochs=2, seed=seed)
    world = RandomJob(configuration, seed)
    opened = Journal(folder / "journal", configuration)
    world.adopt(opened.restore())
    while len(world.events) < 60:
        world.step()
    opened.close()
    (folder / "job.json").write_text(configuration.to_json())
    return configuration, [plain(event) for event in world.events]


def resumed(folder, configuration):
    """The events that a new master has, by its journal, as often as it may be read."""
    opened = Journal(folder / "journal", configuration)
    opened.restore()
    opened.close()
    return [entry.event for entry in read(folder / "journal")[1]]


@pytest.mark.slow
def test_a_damaged_journal_is_refused_by_name_or_says_what_was(tmp_path, monkeypatch):
    monkeypatch.setattr(journals, "SEGMENT_EVENTS", 15)
    monkeypatch.setattr(journals, "STATES", 2)
    whole, other = tmp_path / "whole", tmp_path / "other"
    whole.mkdir()
    other.mkdir()
    configuration, events = job_with_journal(whole, 1)
    job_with_journal(other, 2)
    newest = sorted((whole / "journal").iterdir())[-1].name
    assert len(list((whole / "journal").iterdir())) > 3
    damager = Damager(31)
    found = collections.Counter()
    for case in range(CASES):
        folder = tmp_path / str(case)
        shutil.copytree(whole, folder)
        damage = damager.any(folder / "journal", other / "journal")
        with watchdog():
            all_of_it, why = outcome(
                lambda at=folder: [entry.event for entry in read(at / "journal")[1]]
            )
            audited = CliRunner().invoke(audit.main, [str(folder), "--json"])
            there, refused = outcome(lambda at=folder: resumed(at, configuration))
        # Exit code 0, which has none: what is left of the end may be right by itself.
        ended = audited.exception is None or isinstance(audited.exception, SystemExit)
        assert ended, audited.exception
        for given, reason in ((all_of_it, why), (there, refused)):
            if given is None:
                assert str(folder / "journal") in reason, (reason, damage)
                names = [path.name.removesuffix(".gz") for path in damage.paths]
                # A segment in another's place shows in what does not follow on it.
                others = "goes on after|another configuration|is missing"
                assert any(name in reason for name in names) or re.search(others, reason), reason
            elif given != events:
                assert damage.paths[0].name == newest, damage
                assert damage.kind in TORN, damage
                assert given == events[: len(given)]
        if all_of_it is None:
            assert audited.exit_code == 2
            assert audited.output == f"Error: {why}\n"
        else:
            assert audited.exit_code == 0
            assert json.loads(audited.output)
        found[all_of_it is None] += 1
        shutil.rmtree(folder)
    assert found[True] > CASES * 0.5


def test_a_changed_bit_of_a_segments_beginning_is_refused_by_name(tmp_path):
    job_with_journal(tmp_path, 1)
    path = sorted((tmp_path / "journal").iterdir())[-1]
    data = path.read_bytes()
    length = len(Segment(path).header.to_bytes())
    for at in range(0, length, max(1, length // 50)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        _, why = outcome(lambda: Segment(path))
        assert path.name in why, at


@pytest.mark.parametrize("seed", [1])
def test_the_generator_does_the_same_for_the_same_seed(tmp_path, seed):
    done = []
    for turn in range(2):
        folder = tmp_path / str(turn)
        folder.mkdir()
        for name in ("a", "b"):
            (folder / name).write_text(name * 1000)
        done.append(Damager(seed).any(folder, folder).kind)
        done.append({path.name: path.is_file() and path.read_bytes() for path in folder.iterdir()})
    assert done[:2] == done[2:]
