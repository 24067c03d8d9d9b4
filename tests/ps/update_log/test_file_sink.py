"""The thread that writes a log in files: whatever it meets, nobody waits for ever."""

import concurrent.futures

import pytest

from shoal.proto import shoal_pb2 as pb
from shoal.ps.update_log import file_sink
from shoal.ps.update_log.file_sink import FileSink
from shoal.ps.update_log.sinks import LogLostError

PATIENCE = 60.0


@pytest.mark.parametrize(
    ("where", "sync"), [("record", False), ("record", True), ("fdatasync", True)]
)
@pytest.mark.parametrize("error", [MemoryError, OSError, ValueError])
def test_a_write_that_fails_is_a_lost_log_until_another_one_begins(
    tmp_path, monkeypatch, where, error, sync
):
    sink = FileSink(tmp_path, 0, 0, sync=sync)
    sink.begin(pb.LogBase(log="l"))

    def failing(*_):
        raise error("no")

    def appended():
        wait = sink.append(pb.LogEntry(log="l", step=1), b"push")
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            thread.submit(wait).result(PATIENCE)

    with monkeypatch.context() as patched:
        place = file_sink if where == "record" else file_sink.os
        patched.setattr(place, where, failing)
        with pytest.raises(LogLostError, match="no"):
            appended()
    with pytest.raises(LogLostError, match="no"):
        appended()
    sink.begin(pb.LogBase(log="l"))
    appended()
    sink.close()
