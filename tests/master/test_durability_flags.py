"""What --durability=log needs, and what it cannot go with, in words."""

import pytest

from shoal.errors import UserError
from tests.master.strategies import config

LOG = {"durability": "log", "checkpoint_seconds": 9.0}
IN_PODS = {"image": "i:1", "model_def": "m.f", "job_dir": "/job", "training_data": "/d"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"durability": "both"}, "--durability must be one of checkpoint, log, not 'both'"),
        ({"log_mb": 5}, "--log-mb is of the log of updates: add --durability=log"),
        ({"log_place": "peer"}, "--log-place is of the log of updates: add --durability=log"),
        (LOG | {"log_place": "disk"}, "--log-place must be one of auto, peer, file, not 'disk'"),
        (LOG | {"log_place": "peer"}, "with --num-ps 1 there is no other server"),
        ({"log_fsync": True}, "--log-fsync is of the log of updates: add --durability=log"),
        (LOG | {"log_mb": 0}, "--log-mb must be at least 1, not 0"),
        (LOG | {"sync": True}, "--sync: leave one of them out"),
        (LOG | {"log_fsync": True, "num_ps": 2}, "with --num-ps 2 it is in another server's"),
        (LOG | {"checkpoint_seconds": 0.0}, "set --checkpoint-seconds or --checkpoint-steps"),
    ],
)
def test_what_cannot_be(fields, message):
    with pytest.raises(UserError) as raised:
        config(**fields)
    assert message in str(raised.value)


def test_in_pods_a_single_servers_log_is_on_a_volume():
    shared = {"checkpoint_dir": "gs://bucket/checkpoints"}
    with pytest.raises(UserError, match=r"--durability=log.*--job-dir.*--volume.*--num-ps 2"):
        config(**LOG, **IN_PODS, **shared).resolved()
    assert config(**LOG, **IN_PODS, num_ps=2, **shared).resolved().durability == "log"
    with pytest.raises(UserError, match=r"--log-place=file"):
        config(**LOG, **IN_PODS, num_ps=2, log_place="file", **shared).resolved()
    assert config(**LOG, **IN_PODS, **shared, volume="pvc=jobs,mount=/job").resolved().image
    with pytest.raises(UserError, match=r"--durability=log needs checkpoints.*all pods share"):
        config(**LOG, **IN_PODS, num_ps=2).resolved()


def test_where_the_log_is():
    assert not config(num_ps=1).log_in_files
    assert config(**LOG, num_ps=1).log_in_files
    assert not config(**LOG, num_ps=2).log_in_files
    assert config(**LOG, num_ps=2, log_place="file", log_fsync=True).log_in_files
