"""The logs of a job's processes, a file for each start: which are kept, and which is meant."""

import pytest
from click.testing import CliRunner

from shoal.base.disk.job_folder import JobFolder
from shoal.base.disk.job_logs import KEPT_STARTS, keep_log, log_of, logs_of
from shoal.cli.main import main
from shoal.errors import UserError


def test_the_newest_starts_of_each_process_are_kept(tmp_path):
    folder = JobFolder(tmp_path)
    keep_log(folder, "worker", 10, 0, "another's")
    for incarnation in (3, *range(8, 8 + KEPT_STARTS)):
        keep_log(folder, "worker", 1, incarnation, f"of {incarnation}")
    kept = logs_of(folder)
    assert sorted(kept) == [("worker", 1), ("worker", 10)]
    assert sorted(kept["worker", 1]) == list(range(8, 8 + KEPT_STARTS))
    assert log_of(folder, "worker", 1).read_text() == f"of {7 + KEPT_STARTS}"
    assert log_of(folder, "worker", 1, 9).read_text() == "of 9"
    with pytest.raises(UserError, match="no log of restart 3 of worker-1, only of 8, 9"):
        log_of(folder, "worker", 1, 3)
    with pytest.raises(
        UserError, match="has no process ps-0; there are: master, worker-1, worker-"
    ):
        log_of(folder, "ps", 0)


def test_the_log_of_an_earlier_start_is_shown(tmp_path):
    folder = JobFolder(tmp_path)
    folder.config.write_text("{}")
    for incarnation in (0, 1):
        keep_log(folder, "ps", 0, incarnation, f"start {incarnation}\n")

    def shown(*words):
        return CliRunner().invoke(main, ["logs", str(tmp_path), *words]).output

    assert shown("ps", "0") == "start 1\n"
    assert shown("ps", "0", "--restart", "0") == "start 0\n"
    assert "no log of restart 2 of ps-0, only of 0, 1" in shown("ps", "0", "--restart", "2")
    assert "--restart is for workers and servers" in shown("--restart", "0")
