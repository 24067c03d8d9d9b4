"""What --durability=log needs, what it cannot go with, and what it is by default, in words."""

import pytest

from shoal.errors import UserError
from tests.master.strategies import config

LOG = {"durability": "log", "checkpoint_seconds": 9.0}
NO_LOG = {"durability": "checkpoint"}
EVALUATION = {"validation_data": "/d", "restore_from": "/r"}
IN_PODS = {"image": "i:1", "model_def": "m.f", "job_dir": "/job", "training_data": "/d"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"durability": "both"}, "--durability must be one of auto, log, peer, file, disk,"),
        (NO_LOG | {"log_mb": 5}, "--log-mb cannot be combined with --durability=checkp"),
        (LOG | {"durability": "peer"}, "needs a second server: use --servers 2"),
        (LOG | {"log_mb": -1}, "--log-mb must be at least 0, not -1"),
        (LOG | {"checkpoint_seconds": 0.0}, "set --checkpoint-seconds or --checkpoint-steps"),
    ],
)
def test_what_cannot_be(fields, message):
    with pytest.raises(UserError) as raised:
        config(**fields).resolved()
    assert message in str(raised.value)


def test_in_pods_a_single_servers_log_is_on_a_volume():
    shared = {"checkpoint_dir": "gs://bucket/checkpoints"}
    with pytest.raises(UserError, match=r"--durability=log.*--job-dir.*--volume.*--servers 2"):
        config(**LOG, **IN_PODS, **shared).resolved()
    assert config(**LOG, **IN_PODS, servers="2", **shared).resolved().durability == "log"
    with pytest.raises(UserError, match=r"--durability=file: files in --job-dir"):
        config(**LOG | {"durability": "file"}, **IN_PODS, servers="2", **shared).resolved()
    assert config(**LOG, **IN_PODS, **shared, volume="pvc=jobs,mount=/job").resolved().image
    with pytest.raises(UserError, match=r"--durability=log: .*no checkpoints.*all pods share"):
        config(**LOG, **IN_PODS, servers="2").resolved()


def test_where_the_log_is():
    on_volume = {"volume": "pvc=jobs,mount=/job"}
    assert config(**LOG, servers="1").log_in_files
    assert config(**LOG, servers="2").log_in_files
    assert not config(**LOG | {"durability": "peer"}, servers="2").log_in_files
    assert config(**LOG, **IN_PODS, **on_volume, servers="1").log_in_files
    assert not config(**LOG, **IN_PODS, **on_volume, servers="2").log_in_files
    for durability in ("file", "disk"):
        found = config(**LOG | {"durability": durability}, **IN_PODS, **on_volume, servers="2")
        assert found.resolved().durability == durability
        assert (found.log_in_files, found.log_at_servers) == (True, False)
        assert found.log_fsync == (durability == "disk")


def test_a_log_is_kept_by_default_wherever_one_can_be():
    kept = {"checkpoint_seconds": 9.0}
    shared = {"checkpoint_dir": "gs://bucket/checkpoints"}
    for fields in (
        kept,
        kept | {"servers": "3"},
        {"checkpoint_seconds": 0.0, "checkpoint_steps": 5},
        kept | IN_PODS | shared | {"servers": "2"},
        kept | IN_PODS | {"volume": "pvc=jobs,mount=/job"},
    ):
        resolved = config(**fields).resolved()
        assert resolved.durability == "log"
        assert not resolved.unprotected


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"checkpoint_seconds": 0.0}, "set --checkpoint-seconds or --checkpoint-steps above 0"),
        ({"checkpoint_seconds": 9.0} | IN_PODS | {"servers": "2"}, "--checkpoint-dir to a place"),
        (
            {"checkpoint_seconds": 9.0, "checkpoint_dir": "gs://bucket/checkpoints"} | IN_PODS,
            "use --durability=peer with --servers 2 or more",
        ),
    ],
)
def test_where_none_can_be_kept_it_is_said_with_what_to_change(fields, message):
    resolved = config(**fields).resolved()
    assert resolved.durability == "checkpoint"
    assert message in resolved.unprotected
    assert "is trained again" in resolved.unprotected
    accepting = config(**fields, on_loss="accept").resolved()
    assert "stays lost, and the job ends as degraded" in accepting.unprotected


def test_other_commands_keep_no_log_and_need_no_warning():
    resolved = config(command="evaluate", **EVALUATION).resolved()
    assert (resolved.durability, resolved.unprotected) == ("checkpoint", "")


def test_with_sync_a_log_is_kept_as_without_and_its_want_is_told_with_the_cost():
    assert config(sync=True, checkpoint_seconds=9.0).resolved().durability == "log"
    resolved = config(sync=True, checkpoint_seconds=0.0).resolved()
    assert resolved.durability == "checkpoint"
    assert "ends the job, which can be resumed" in resolved.unprotected
