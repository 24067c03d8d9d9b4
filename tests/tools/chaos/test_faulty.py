"""Storage that fails or hangs when it is told to, as the readers and the checkpoints see it."""

import errno
import threading

import pytest

from shoal.config.job import JobConfig
from shoal.data.places.storage import Storage
from shoal.errors import UserError
from shoal.files.storage import open_storage
from shoal.proto import faults
from shoal.tools.chaos import faulty
from shoal.tools.chaos.count_job import write_input
from shoal.tools.chaos.faults import CHECKPOINTS, DATA, FAIL, HANG, DisturbStorage, Target, When


@pytest.fixture
def job(tmp_path):
    """A job whose data and checkpoints can be disturbed."""
    write_input(tmp_path / "data")
    config = JobConfig(
        model_def="counts.custom_model",
        command="train",
        training_data=str(tmp_path / "data"),
        job_dir=str(tmp_path / "job"),
    )
    return faulty.behind_urls(config.resolved(), {DATA, CHECKPOINTS})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Of faults, which this process looks at as one of the job."""
    made = tmp_path / "faults"
    made.mkdir()
    monkeypatch.setenv(faults.VARIABLE, str(made))
    monkeypatch.setenv(faults.PROCESS_VARIABLE, "worker-0")
    return made


def fault(kind, how, every):
    return DisturbStorage((Target(kind),), When(), 1.0, how=how, every=every)


def errors_in(calls):
    """Which of so many calls of `look` raise an OSError."""

    def of(look):
        found = []
        for _ in range(calls):
            try:
                look()
            except OSError as error:
                found.append(error)
            else:
                found.append(None)
        return found

    return of


def test_every_third_call_fails_until_it_is_over(job, folder):
    storage = open_storage(job.checkpoint_dir)
    storage.make()
    assert storage.location.startswith("faulty:///")
    broken = faulty.begin(folder, fault(CHECKPOINTS, FAIL, 3), job)
    found = errors_in(9)(storage.make)
    assert sum(each is not None for each in found) == 3
    assert {each.errno for each in found if each} == {errno.EIO}
    broken.unlink()
    assert errors_in(9)(storage.make) == [None] * 9


def test_what_is_read_and_written_fails_too(job, folder):
    storage = open_storage(job.checkpoint_dir)
    storage.make()
    with storage.write("file") as file:
        file.write(b"content")
    assert storage.names() == ["file"]
    with storage.read("file") as file:
        assert file.read(3) == b"con"
        broken = faulty.begin(folder, fault(CHECKPOINTS, FAIL, 1), job)
        with pytest.raises(OSError, match="the storage fails, as shoal chaos was told"):
            file.read(4)
    for call in (storage.names, lambda: storage.size("file"), lambda: storage.discard("file")):
        with pytest.raises(OSError, match="the storage fails"):
            call()
    broken.unlink()

    def write_half():
        with storage.write("other") as file:
            faulty.begin(folder, fault(CHECKPOINTS, FAIL, 1), job)
            file.write(b"half")

    with pytest.raises(OSError, match="the storage fails"):
        write_half()
    faulty.fault_file(folder, CHECKPOINTS).unlink()
    assert storage.names() == ["file"]


def test_a_reader_gets_the_error_and_other_storage_is_left_alone(job, folder):
    data = Storage(job.training_data, "--training-data")
    assert len(data.names) == 2
    assert all(name.startswith("faulty:///") for name in data.names)
    checkpoints = open_storage(job.checkpoint_dir)
    whole = data.open(data.names[0]).read()
    faulty.begin(folder, fault(DATA, FAIL, 1), job)
    with pytest.raises(OSError, match="the storage fails"):
        data.open(data.names[1])
    checkpoints.make()
    faulty.fault_file(folder, DATA).unlink()
    data.open(data.names[1])
    assert data.open(data.names[0]).read() == whole


def test_what_hangs_goes_on_when_it_is_over(job, folder):
    storage = open_storage(job.checkpoint_dir)
    storage.make()
    broken = faulty.begin(folder, fault(CHECKPOINTS, HANG, 1), job)
    through = threading.Thread(target=storage.make)
    through.start()
    through.join(0.5)
    assert through.is_alive()
    broken.unlink()
    through.join()


def test_the_process_of_chaos_itself_is_not_disturbed(job, folder, monkeypatch):
    monkeypatch.delenv(faults.PROCESS_VARIABLE)
    faulty.begin(folder, fault(CHECKPOINTS, FAIL, 1), job)
    open_storage(job.checkpoint_dir).make()


def test_storage_that_is_not_of_this_machine_is_refused():
    config = JobConfig(
        model_def="m.f", command="train", training_data="s3://bucket/data"
    ).resolved()
    with pytest.raises(UserError, match="--storage data: s3://bucket/data is no file or folder"):
        faulty.behind_urls(config, {DATA})
