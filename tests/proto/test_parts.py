"""Large requests: cut, joined, and what is no such request refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.proto import methods, parts, serving
from shoal.proto.errors import WireError


@given(st.binary(max_size=200), st.integers(9, 64))
def test_joining_gives_what_was_cut(request_, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "PART_BYTES", size)
        pieces = list(parts.cut(request_))
        assert all(len(piece) <= size for piece in pieces)
        assert parts.join(iter(pieces), 200) == request_


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda pieces: [], "without a first part"),
        (lambda pieces: pieces[:-1], "only 32 of 50 bytes"),
        (lambda pieces: [*pieces, b"x"], "came with more"),
        (lambda pieces: [b"\xff" * 8], "at most 1000"),
    ],
)
def test_parts_that_are_no_request_are_refused(monkeypatch, change, reason):
    monkeypatch.setattr(parts, "PART_BYTES", 20)
    with pytest.raises(WireError, match=reason):
        parts.join(iter(change(list(parts.cut(bytes(50))))), 1000)


def test_a_large_request_arrives_whole_and_its_refusal_comes_back(connect, monkeypatch):
    monkeypatch.setattr(parts, "WHOLE_BYTES", 100)
    monkeypatch.setattr(parts, "PART_BYTES", 64)

    def handler(frame):
        if frame.startswith(b"refuse"):
            raise WireError(6, "because")
        return frame[::-1]

    server, port = serving.serve({methods.PUSH: handler}, "127.0.0.1:0", 2, "job/ps-0")
    connection = connect(f"127.0.0.1:{port}", peer="job/ps-0")
    request = bytes(range(256)) * 4
    assert connection.call(methods.PUSH, request) == request[::-1]
    with pytest.raises(WireError, match="FENCED: because"):
        connection.call(methods.PUSH, b"refuse" + request)
    with pytest.raises(WireError, match="this is job/ps-0"):
        connect(f"127.0.0.1:{port}", peer="other/ps-0").call(methods.PUSH, request)
    server.stop(None).wait()
