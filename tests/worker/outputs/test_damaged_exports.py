"""Damaged exports: --restore-from refuses them by the file's name, or gives what they had."""

import collections
import shutil

import pytest
from click.testing import CliRunner

from shoal.checkpoints.saved import Export, open_saved
from shoal.cli.main import main
from tests.damage import Damager, outcome, watchdog
from tests.worker.exported import export_to
from tests.worker.outputs.builds import BUILDS, trained

pytestmark = pytest.mark.slow

CASES = 80
"""With wrong checksums, and as many with right ones."""


def values(folder):
    """All that --restore-from takes of an export for the model, by name."""
    saved = open_saved(str(folder))
    found = {name: value.tobytes() for name, value in saved.dense().items()}
    for table, dim in (("wide", 1), ("deep", 4)):
        for ids, rows in saved.rows(table, dim):
            pairs = zip(ids.tolist(), rows, strict=True)
            found |= {(table, id_): row.tobytes() for id_, row in pairs}
    return found


def test_a_damaged_export_is_refused_by_name_or_is_what_it_was(served, tmp_path):
    model = trained(served, BUILDS["functional"])
    whole, other = tmp_path / "whole", tmp_path / "other"
    export_to(whole, model)
    export_to(other, served(build=BUILDS["functional"]))
    expected = values(whole)
    good = collections.Counter()
    damager = Damager(21)
    for case in range(2 * CASES):
        folder = tmp_path / str(case)
        shutil.copytree(whole, folder)
        resealed = case >= CASES
        damage = damager.resealed_export(folder) if resealed else damager.any(folder, other)
        with watchdog():
            found, why = outcome(lambda at=folder: values(at))
            _, listed = outcome(lambda at=folder: Export(str(at)).verify())
        assert all(each.startswith("--restore-from: ") for each in (why, listed) if each)
        if (folder / "manifest.json").exists():
            told = f"NOT GOOD: {listed.removeprefix('--restore-from: ')}" if listed else "good"
            shown = CliRunner().invoke(main, ["checkpoint", "verify", str(folder)])
            assert (shown.exit_code, shown.output) == (int(bool(listed)), f"export: {told}\n")
        good[resealed, found is not None] += 1
        assert found in (None, expected), damage
        assert found or str(folder) in why or "the export has" in why, (why, damage)
        if not resealed:
            # What --restore-from has no use for, the list of files tells all the same.
            names = [f"{path}: " for path in damage.paths] + [f"{folder} is not the output"]
            assert any(name in listed for name in names), (listed, damage)
        shutil.rmtree(folder)
    assert good[False, False] > CASES // 4
    assert good[True, False] > CASES // 2
