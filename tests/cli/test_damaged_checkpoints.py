"""Damaged checkpoints at every door: refused by the file's name, or restored as they were."""

import collections
import re
import shutil
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from shoal.checkpoints import contents
from shoal.checkpoints.folders import Checkpoint, folder_name
from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.checkpoints.newest import newest_good
from shoal.checkpoints.saved import open_saved
from shoal.cli.main import main
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.files.storage import LocalStorage
from shoal.master.calls.servers import ServerConnections
from shoal.master.calls.take_checkpoint import CheckpointTaker
from tests.damage import Damager, watchdog
from tests.examples import examples
from tests.ps.groups import IDS, Group, restored

pytestmark = pytest.mark.slow

CASES = examples(300)
SAMPLE = 4
"""Cases a test of which are also given to the command line as a process."""


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """(root of two checkpoints of two servers, the rows and vectors of the second)."""
    group = Group(2)
    root = tmp_path_factory.mktemp("good")
    group.push(1, IDS[:40].copy())
    group.save(root, 1)
    group.push(2, IDS[:500].copy())
    group.save(root, 2)
    return root, group.content()


def refused(call):
    """(what `call` gives, None), or (None, why it is refused): in one line."""
    try:
        return call(), None
    except (CheckpointError, UserError) as error:
        why = str(error)
    assert "\n" not in why
    return None, why


def shown(*arguments):
    """(exit code, output) of `shoal checkpoint`; anything but an exit is raised."""
    result = CliRunner().invoke(main, ["checkpoint", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert "Traceback" not in result.output
    return result.exit_code, result.output


def saved_values(location):
    """All that --restore-from takes, by name and id; values only."""
    saved = open_saved(location)
    found = {name: value.tobytes() for name, value in saved.dense().items()}
    for table, dim in (("items", 3), ("unused", 2)):
        for ids, rows in saved.rows(table, dim):
            pairs = zip(ids.tolist(), rows, strict=True)
            found |= {(table, id_): row.tobytes() for id_, row in pairs}
    return found


def doors(root, expected, values, damage, tmp_path):
    """Every door on checkpoint 2 below `root`; what they said, None if it is good."""
    folder = root / folder_name(2)
    code, output = shown("verify", root, "--number", 2)
    whole, why = refused(lambda: contents.verify(Checkpoint(LocalStorage(root), 2)) or True)
    results = [refused(lambda n=n: restored(root, 2, n).content()) for n in (2, 1)]
    saved, saved_why = refused(lambda: saved_values(str(folder)))
    assert (code, whole) in ((0, True), (1, None)), output
    assert shown("list", root)[0] == 0
    wanted = int(IDS[45])
    out = tmp_path / "out.parquet"
    out.unlink(missing_ok=True)
    code, text = shown("export", root, "items", out, "--number", 2)
    if whole:
        # What is called good is restored, and as it was.
        for found, _ in results:
            assert found == expected
        assert saved == values or "the checkpoint has" in saved_why
        if code == 0:
            table = pq.read_table(out)
            assert dict(zip(*table.select(["id", "vector"]).to_pydict().values(), strict=True)) == {
                i: list(row[:3]) for i, row in expected[0].items()
            }
        else:
            assert re.search("no table|has no rows", text), text
        assert newest_good(LocalStorage(root))[0].number == 2
        return None
    assert output.splitlines() == [f"checkpoint 2: NOT GOOD: {why}"]
    # By the name of a file of it: of the one that was damaged, where checksums tell.
    if not damage.kind.startswith("resealed"):
        named = [str(path) for path in damage.paths]
        assert any(why.startswith(f"{name}: ") for name in named), (why, damage)
    assert why.startswith(f"{folder}/"), (why, damage)
    for found, reason in results:
        assert found is None or found == expected
        assert reason is None or reason.startswith(f"{folder}/")
    assert saved is None or saved == values
    assert saved_why is None or saved_why.startswith("--restore-from: ")
    found, (error,) = newest_good(LocalStorage(root))
    assert (found.number, str(error)) == (1, why)
    code, text = shown("show", root, "items", "--id", wanted, "--number", 2)
    assert code in (0, 2)
    assert len(text.splitlines()) == 1 or code == 0
    return why


@pytest.mark.parametrize("kind", ["any", "resealed"])
def test_a_damaged_checkpoint_is_refused_by_name_or_is_what_it_was(good, tmp_path, kind):
    root, expected = good
    values = saved_values(str(root / folder_name(2)))
    damager = Damager(11 if kind == "any" else 12)
    reasons = collections.Counter()
    asked = np.random.default_rng(3).choice(CASES // 2, SAMPLE, replace=False)
    for case in range(CASES // 2):
        damaged = tmp_path / str(case)
        shutil.copytree(root, damaged)
        folder = damaged / folder_name(2)
        if kind == "any":
            damage = damager.any(folder, damaged / folder_name(1))
        else:
            damage = damager.resealed_checkpoint(folder)
        with watchdog():
            why = doors(damaged, expected, values, damage, tmp_path)
        reasons[why is None] += 1
        assert why is not None or damage.kind.startswith("resealed"), damage
        if case in asked:
            command = [sys.executable, "-m", "shoal", "checkpoint", "verify", str(damaged)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            assert (done.returncode, done.stderr) == (1 if why else 0, "")
            assert done.stdout.count("\n") == 2
            assert (why or "checkpoint 2: good") in done.stdout
        shutil.rmtree(damaged)
    # Most are: what only the master's position or a push's number says is nobody's value.
    assert reasons[False] > CASES // 2 * 0.75


def test_a_master_finds_what_is_good_among_what_is_damaged(good, tmp_path):
    """And is not ended by any of it."""
    root, _ = good
    damager = Damager(13)
    for number in range(1, 21):
        folder = tmp_path / folder_name(number)
        source = root / folder_name(1 + number % 2)
        shutil.copytree(source, folder)
        if number % 2:
            damager.any(folder, root / folder_name(1))
        else:
            damager.resealed_checkpoint(folder)
    (tmp_path / "checkpoint-00000021").write_text("not a folder")
    (tmp_path / "checkpoint-00000022").symlink_to("gone")
    shutil.copytree(root / folder_name(2), tmp_path / "checkpoint-0000000002")
    config = JobConfig(model_def="m.m", training_data="t", checkpoint_dir=str(tmp_path), token="t")
    connections = ServerConnections("")
    with watchdog():
        assert CheckpointTaker(config, connections).found() == []  # of another job, all of them
        newest_good(LocalStorage(tmp_path))
        assert shown("verify", tmp_path)[0] == 1
    connections.close()
