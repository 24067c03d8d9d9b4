"""--output whose storage fails: written again, and what becomes of it in the end."""

import errno
import os

import pytest

from shoal.checkpoints.outputs import written
from shoal.errors import StorageError, UserError
from tests.worker.storage import patience


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("shoal.proto.wire.backoff.STORAGE_FIRST", 0.001)
    monkeypatch.setattr("shoal.proto.wire.backoff.STORAGE_LIMIT", 0.01)


class Failing:
    """Work that fails so often, with an error of the system."""

    def __init__(self, times, number=errno.EIO):
        self.times, self.number, self.calls = times, number, 0

    def __call__(self):
        self.calls += 1
        if self.calls <= self.times:
            raise OSError(self.number, os.strerror(self.number), "part")
        return "done"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.ESTALE, errno.ETIMEDOUT])
def test_what_fails_for_a_while_is_done_again(number):
    work = Failing(4, number)
    assert written(patience(), "out", work) == "done"
    assert work.calls == 5


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOTDIR])
def test_what_another_output_would_mend_is_the_users_at_once(number):
    work = Failing(1, number)
    with pytest.raises(UserError, match="--output: cannot write out: "):
        written(patience(), "out", work)
    assert work.calls == 1


def test_when_the_patience_ends_the_last_error_is_told_and_what_is_left():
    work = Failing(1_000_000)
    with pytest.raises(StorageError, match=r"cannot write out: \[Errno 5\].*'part'; half of it"):
        written(patience(0.05), "out", work, lambda: "half of it")
    assert work.calls > 1


def test_without_patience_the_first_error_is_the_last():
    work = Failing(1)
    with pytest.raises(StorageError):
        written(None, "out", work)
    assert work.calls == 1
