"""Jobs whose parts stand still, or leave by the back door: told, waited for, or replaced."""

import os
import re
import signal

import pytest

from tests.jobs.running import RunningJob, until

pytestmark = pytest.mark.job


@pytest.mark.parametrize("model_def", ["storage", "storage_batches"])
def test_a_reader_that_calls_sys_exit_is_an_error_in_the_users_code(tmp_path, numbered, model_def):
    with RunningJob(
        "train",
        tmp_path,
        "leaving",
        model_def=f"{model_def}.custom_model",
        environment={"STORAGE": "exit-37"},
        training_data=numbered[0],
        minibatch_size=16,
        num_minibatches_per_task=4,
    ) as job:
        ended = job.ended()
    assert ended.code == 1, ended.out + ended.err
    failure = ended.result["failure"]
    assert failure["kind"] == "USER_CODE"
    assert "SystemExit" in failure["message"]
    assert "sys.exit(0)" in failure["traceback"]
    assert "storage.py" in ended.err
    assert "sys.exit(0)" in ended.err


def test_a_client_says_that_it_waits_for_a_master_which_does_not_start(tmp_path, numbered):
    with RunningJob(
        "train",
        tmp_path,
        "silent",
        model_def="counting.custom_model",
        training_data=numbered[0],
        minibatch_size=48,
    ) as job:
        master = until("a master", lambda: job.folder.config.exists() and job.pid("master"))
        os.kill(master, signal.SIGSTOP)
        output = tmp_path / "silent.out"
        # It has answered already where this test was slow to stop it.
        told = re.compile(r"waiting for the master to start|the master has not answered")
        until("a word of the client", lambda: told.search(output.read_text()))
        os.kill(master, signal.SIGCONT)
        job.ended().succeeded()
