"""Damaged logs in files: what is done again is a beginning, and the rest is told and counted."""

import shutil

import pytest

from shoal.ps.update_log import replay
from tests.damage import Damage, Damager, watchdog
from tests.examples import examples
from tests.ps.logged import content, lost
from tests.ps.update_log.written_log import PUSHES, Written

CASES = examples(20)
"""For each of three logs."""


@pytest.mark.parametrize(("cut_at", "complete"), [(0, False), (3, False), (3, True)])
def test_a_damaged_log_is_told_by_name_or_costs_nothing(
    tmp_path, tmp_path_factory, monkeypatch, cut_at, complete
):
    monkeypatch.setattr(replay, "RETRY_SECONDS", 0.01)
    written = Written(tmp_path, cut_at, complete)
    folder = written.segments[0].parent
    other = tmp_path_factory.mktemp("other")
    another = Written(other, 2, complete=False)
    another.job.close()
    kept = tmp_path_factory.mktemp("kept") / "log"
    shutil.copytree(folder, kept)
    damager = Damager(41 + cut_at + complete)
    for case in range(CASES):
        if case:
            damage = damager.any(folder, another.segments[0].parent)
        else:
            # The one case that is sure to lose updates.
            damage = Damage("empty", (written.segments[-1],))
            written.segments[-1].write_bytes(b"")
        with watchdog():
            server, unprotected = written.restart()
        version = server.model.version
        if server.model.dense.initialized:
            assert content(server.model) == written.contents[version], damage
        assert lost(server) == PUSHES - version
        assert case or version < PUSHES
        # In place of the only file, the beginning of another log of the same pushes is as good.
        replaced = damage.kind == "foreign" and len(written.segments) == 1
        torn = replaced or damage.kind in ("cut", "zeroed", "empty", "missing")
        if version < PUSHES and not (torn and damage.paths[0] == written.segments[-1]):
            assert str(folder) in unprotected or "reach back" in unprotected, (unprotected, damage)
        written.job.kill(0)
        shutil.rmtree(folder)
        shutil.copytree(kept, folder)
    written.job.close()
