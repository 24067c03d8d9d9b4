"""A job of which nothing is left running goes on from its folder."""

import json
import os
import re

import pytest

import shoal
from shoal.base.disk.job_folder import JobFolder
from shoal.checkpoints.folders import folder_name
from shoal.proto import faults
from tests.jobs.results import SERIAL, applied
from tests.jobs.running import RunningJob, audited, resume, until

pytestmark = pytest.mark.job


def resumed_from(result):
    """The number of the checkpoint from which a job was resumed."""
    texts = "\n".join(result["messages"])
    return int(re.search(r"the job was resumed from checkpoint (\d+)", texts)[1])


def trained_as_the_audit_says(output, records, apart):
    """All 480 records once; twice, on some servers, only pushes by which the shards differed."""
    twice = 10 * apart
    assert records["more"] == twice
    assert records["once"] + records["more"] == records["total"] == 480
    total, counts = applied(output)
    assert set(total) <= {480.0, 480.0 + twice}
    assert set(counts) == set(range(480))
    assert set(counts.values()) <= {1, 2}
    assert [*counts.values()].count(2) <= twice


def test_killed_whole_and_resumed_with_other_numbers_of_processes(numbered, tmp_path, monkeypatch):
    training, validation = numbered
    with RunningJob(
        "train",
        tmp_path,
        "killed",
        environment={"GATES": "step-20"},
        training_data=training,
        validation_data=validation,
        output=tmp_path / "out",
        servers="2",
        workers="1",
        num_minibatches_per_task=4,
        checkpoint_steps=5,
        **SERIAL,
    ) as job:
        job.at_gate("step-20")
        job.wait_taken()
        job.kill_whole()
        apart = job.pushes_apart()
        monkeypatch.setenv("SHOAL_TEST_GATE", f"{job.folder.path}.gate")
        with pytest.raises(shoal.UserError, match="has no argument epoch: the job keeps it"):
            shoal.resume(job.folder.path, epoch=3)
        assert shoal.resume(job.folder.path, servers=3, workers=2).state == "succeeded"
        report = audited(job.folder)
        result = json.loads(job.folder.result.read_text())
        again = resume(job.folder)
    # One made after the end, from the logs, has every push whole.
    differ = apart.get(resumed_from(result), 0)
    trained_as_the_audit_says(tmp_path / "out", report["records"], differ)
    assert again.returncode == 2
    assert again.stderr == "Error: --resume: job killed has succeeded: nothing is left to do\n"


@pytest.mark.parametrize(
    ("steps", "had_servers", "servers"), [(15, 1, 1), (1000, 1, 2), (15, 2, 2)]
)
def test_what_is_in_a_log_in_files_is_not_lost_when_all_die(
    numbered, tmp_path, steps, had_servers, servers
):
    """With a checkpoint and without; onto as many servers as before, and onto others."""
    with RunningJob(
        "train",
        tmp_path,
        "logged",
        environment={"GATES": "step-20"},
        training_data=numbered[0],
        output=tmp_path / "out",
        servers=str(had_servers),
        workers="1",
        num_minibatches_per_task=4,
        durability="file",
        checkpoint_steps=steps,
        **SERIAL,
    ) as job:
        job.at_gate("step-20")
        # The shard of each server has as many pushes as it says: one may be in one shard only.
        shards = job.wait_taken().shards if steps < 20 else []
        job.kill_whole()
        done = resume(job.folder, servers=str(servers), workers="2")
        assert done.returncode == 0, done.stdout + done.stderr
        report = audited(job.folder)
    assert report["records"]["once"] == report["records"]["total"] == 480
    assert report["records"]["lost"] == report["updates"]["lost"] == 0
    # All 19 pushes that the worker was told of; none came after.
    had = sum(shard["version"] for shard in shards)
    assert report["updates"]["replayed"] == had_servers * 19 - had
    total, counts = applied(tmp_path / "out")
    assert set(total) == {480.0}
    assert set(counts) == set(range(480))
    assert set(counts.values()) == {1}


def test_a_log_of_before_is_not_done_again_by_a_server_that_dies_as_the_job_is_resumed(
    numbered, tmp_path
):
    """One server's log is gone, so the job begins anew; the other's must not come back with it."""
    with RunningJob(
        "train",
        tmp_path,
        "stale",
        environment={"GATES": "step-20"},
        training_data=numbered[0],
        output=tmp_path / "out",
        servers="2",
        workers="1",
        durability="file",
        checkpoint_seconds=1000,
        **SERIAL,
    ) as job:
        job.at_gate("step-20")
        job.kill_whole()
        for file in job.folder.update_log.glob("ps-0001.*"):
            file.unlink()
        kills = tmp_path / "kills"
        kills.mkdir()
        armed = faults.arm(kills, "before-restore-plan", "ps-0")
        done = resume(job.folder, environment={faults.VARIABLE: str(kills)})
        assert done.returncode == 0, done.stdout + done.stderr
        assert not armed.exists()
        report = audited(job.folder)
    assert report["records"]["once"] == report["records"]["total"] == 480
    total, counts = applied(tmp_path / "out")
    assert set(total) == {480.0}
    assert set(counts.values()) == {1}


def test_a_log_from_the_beginning_needs_no_checkpoint_that_is_good(numbered, tmp_path):
    """All died when the first checkpoint was complete, and its log was not let go of yet."""
    with RunningJob(
        "train",
        tmp_path,
        "whole",
        environment={"GATES": "step-10 step-20"},
        training_data=numbered[0],
        output=tmp_path / "out",
        workers="1",
        num_minibatches_per_task=4,
        durability="file",
        checkpoint_steps=15,
        **SERIAL,
    ) as job:
        job.at_gate("step-10")
        (first,) = job.folder.update_log.iterdir()
        kept = tmp_path / "kept"
        os.link(first, kept)  # it grows on, and stays when the server removes it
        job.open("step-10")
        job.at_gate("step-20")
        until("the end of the log's beginning", lambda: not first.exists())
        job.kill_whole()
        table, *_ = sorted((job.folder.path / "checkpoints").rglob("*.arrow"))
        content = bytearray(table.read_bytes())
        content[len(content) // 2] ^= 1
        table.write_bytes(content)

        refused = resume(job.folder)
        assert refused.returncode, refused.stdout
        line = refused.stderr.splitlines()[-1]
        assert line.startswith("Error: --resume: none of the job's checkpoints")
        assert str(table) in line
        assert "ps-0: its log does not reach back to the checkpoint" in line
        os.link(kept, first)
        done = resume(job.folder)
        assert done.returncode == 0, done.stdout + done.stderr
        report = audited(job.folder)
    assert report["records"]["once"] == report["records"]["total"] == 480
    assert report["records"]["lost"] == report["updates"]["lost"] == 0
    assert report["updates"]["replayed"] == 19
    total, counts = applied(tmp_path / "out")
    assert set(total) == {480.0}
    assert set(counts) == set(range(480))
    assert set(counts.values()) == {1}


def flip(path):
    """Damage a file; done twice, it is as it was."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(("sync", "servers"), [(False, 2), (True, 3)])
def test_servers_find_the_checkpoint_damaged_and_all_begin_with_the_one_before(
    numbered, tmp_path, sync, servers
):
    """Found as it is restored; what is trained is what all of them have."""
    with RunningJob(
        "train",
        tmp_path,
        "refused",
        environment={"GATES": "step-10 step-20"},
        training_data=numbered[0],
        output=tmp_path / "out",
        servers="2",
        workers="1",
        num_minibatches_per_task=4,
        checkpoint_steps=5,
        keep_checkpoint_max=2,
        durability="checkpoint",
        **({"sync": True, "grads_to_wait": 1} if sync else {}),
        **SERIAL,
    ) as job:
        checkpoints = job.folder.path / "checkpoints"
        job.at_gate("step-10")
        job.wait_taken(1)
        job.open("step-10")
        job.at_gate("step-20")
        job.wait_taken(2)
        job.kill_whole()
        apart = job.pushes_apart()
        # Another one may have been under way: the newest two that the journal knows.
        older, newer = (
            file
            for taken in job.taken()[-2:]
            for file in (checkpoints / folder_name(taken.number)).glob("server-0001.*.table-0000*")
        )
        flip(newer)
        if not sync:  # none is good
            flip(older)
            refused = resume(job.folder, servers=str(servers))
            assert refused.returncode == 2, refused.stdout + refused.stderr
            why = f"--resume: none of the job's checkpoints in {checkpoints} is good: "
            assert why in refused.stderr
            assert "table-0000.arrow: damaged" in refused.stderr
            assert "Traceback" not in refused.stderr
            flip(older)
        done = resume(job.folder, servers=str(servers))
        assert done.returncode == 0, done.stdout + done.stderr
        report = audited(job.folder)
        result = json.loads(job.folder.result.read_text())
    texts = "\n".join(map(str, result["messages"]))
    number = int(newer.parent.name.removeprefix("checkpoint-"))
    assert f"warning: checkpoint {number} is refused: {newer}: damaged" in texts
    before = int(older.parent.name.removeprefix("checkpoint-"))
    assert f"the job was resumed from checkpoint {before}" in texts
    trained_as_the_audit_says(tmp_path / "out", report["records"], apart[before])


def test_what_cannot_be_resumed_is_told(tmp_path):
    folder = JobFolder(tmp_path)
    done = resume(folder)
    assert done.returncode == 2
    assert done.stderr == f"Error: --resume: there is no job with a journal in {tmp_path}\n"
    done = resume(folder, seed=3)
    assert done.stderr == "Error: --seed cannot be given with --resume: the job keeps it\n"
