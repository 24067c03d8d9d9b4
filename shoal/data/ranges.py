"""A file behind a URL, read by ranges that are fetched before they are asked for.

Who reads tells which ranges come next (`expect`); threads fetch them, several at once. A read that
fails is tried again; one that takes long is begun a second time, and the first answer counts. Where
the bytes come from is remote.py's, which ranges are read the formats' readers'.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

Fetch = Callable[[int, int], bytes]
"""Gives the bytes [begin, end) of a file. Raises OSError."""

AHEAD_BYTES = 64 << 20
"""Most bytes that are fetched and not yet read, unless more are needed at once."""

PIECE_BYTES = 8 << 20
"""Most bytes of one request."""

LEAST_BYTES = 256 << 10
"""Of one request, where there are more ranges than fit in `AHEAD_BYTES` otherwise."""

GAP_BYTES = 32 << 10
"""Between two ranges that are fetched by one request: a request costs about as much."""

WINDOW_BYTES = 64 << 10
"""That are fetched where nobody told which come next."""

THREADS = 8
"""Requests of a process that are under way at once."""

PAUSES = (0.0, 0.05, 0.2)
"""Seconds before a request is tried again, and how often."""

PATIENCE_SECONDS = 2.0
"""After which a request is begun a second time."""


class _Pool:
    """Threads that make requests. They end with the process, also in the middle of one."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0

    def start(self, work: Callable[[], None]) -> None:
        with self._lock:
            if not self._idle and self._threads < THREADS:
                self._threads += 1
                name = f"fetch {self._threads}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
            self._work.put(work)

    def _run(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            work = self._work.get()
            with self._lock:
                self._idle -= 1
            work()


_POOL = _Pool()


def at_once(calls: Sequence[Callable[[], None]]) -> None:
    """Make calls, several at once, and wait for all. What one raises is dropped."""
    left = threading.Semaphore(0)

    def made(call: Callable[[], None]) -> None:
        try:
            with contextlib.suppress(Exception):
                call()
        finally:
            left.release()

    for call in calls:
        _POOL.start(partial(made, call))
    for _ in calls:
        left.acquire()


class _Piece:
    """Bytes [begin, end) of a file, fetched by one request."""

    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end
        self.started = False
        self._lock = threading.Condition()
        self._data: bytes | None = None
        self._error: BaseException | None = None
        self._under_way = 0
        self._dropped = False

    def __len__(self) -> int:
        return self.end - self.begin

    def start(self, fetch: Fetch) -> None:
        self.started = True
        with self._lock:
            self._under_way += 1
        _POOL.start(lambda: self._run(fetch))

    def drop(self) -> None:
        with self._lock:
            self._dropped = True

    def _run(self, fetch: Fetch) -> None:
        data: bytes | None = None
        error: BaseException | None = None
        if not self._dropped and self._data is None:
            try:
                data = fetched(fetch, self.begin, self.end)
            except BaseException as raised:
                error = raised
        with self._lock:
            self._under_way -= 1
            if data is not None and self._data is None:
                self._data = data
            elif error is not None:
                self._error = error
            self._lock.notify_all()

    def get(self, fetch: Fetch) -> bytes:
        """The bytes. Raises what the last request did."""
        with self._lock:
            done = self._lock.wait_for(self._settled, PATIENCE_SECONDS)
        if not done:
            self.start(fetch)
        with self._lock:
            self._lock.wait_for(self._settled)
            if self._data is None:
                assert self._error is not None
                raise self._error
            return self._data

    def _settled(self) -> bool:
        return self._data is not None or not self._under_way


def fetched(fetch: Fetch, begin: int, end: int) -> bytes:
    """A range, tried again where that fails. Raises the last OSError."""
    for pause in PAUSES:
        try:
            return fetch(begin, end)
        except FileNotFoundError:
            raise
        except OSError:
            time.sleep(pause)
    return fetch(begin, end)


class RangeFile:
    """A file that is read by ranges; what Arrow wants of a Python file.

    fetch: gives its bytes. size: how many there are. tail: the last of them, which are there
        already.
    """

    def __init__(self, fetch: Fetch, size: int, tail: bytes = b"") -> None:
        self._fetch = fetch
        self._size = size
        self._position = 0
        self._pieces: list[_Piece] = []  # by where they begin
        self._waiting: deque[_Piece] = deque()  # not started, in the order of need
        self._ahead = 0  # bytes of those that were started
        self._window = size - len(tail), tail
        self.closed = False

    def expect(self, ranges: Iterable[tuple[int, int]]) -> None:
        """These ranges, [begin, end), will be read from now on, and nothing that was told before.

        Those that begin at the same time are read side by side, as the columns of a row group are.
        """
        for piece in self._pieces:
            piece.drop()
        self._ahead = 0
        self._waiting = deque(pieces_of(ranges))
        self._pieces = sorted(self._waiting, key=lambda piece: piece.begin)
        self._begin_more()

    def _begin_more(self) -> None:
        while self._waiting and (
            self._waiting[0].started or self._ahead + len(self._waiting[0]) <= AHEAD_BYTES
        ):
            self._begin(self._waiting.popleft())

    def _begin(self, piece: _Piece) -> None:
        if not piece.started:
            self._ahead += len(piece)
            piece.start(self._fetch)

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        end = self._size if size < 0 else min(self._position + size, self._size)
        parts = []
        while self._position < end:
            part = self._part(self._position, end)
            if not part:
                break  # the file has become shorter
            parts.append(part)
            self._position += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _part(self, begin: int, end: int) -> bytes:
        place = bisect.bisect_right(self._pieces, begin, key=lambda piece: piece.begin) - 1
        if place < 0 or begin >= self._pieces[place].end:
            return self._unexpected(begin, end)
        piece = self._pieces[place]
        self._begin(piece)
        try:
            data = piece.get(self._fetch)
        except BaseException:
            self.expect(())  # who reads begins anew
            raise
        part = data[begin - piece.begin : end - piece.begin]
        if end >= piece.end:
            del self._pieces[place]
            self._ahead -= len(piece)
            self._begin_more()
        return part

    def _unexpected(self, begin: int, end: int) -> bytes:
        first, data = self._window
        if not first <= begin < first + len(data):
            following = bisect.bisect_left(self._pieces, begin, key=lambda piece: piece.begin)
            most = self._pieces[following].begin if following < len(self._pieces) else self._size
            stop = max(min(end, most), min(begin + WINDOW_BYTES, most))
            data = fetched(self._fetch, begin, stop)
            first = begin
            self._window = (first, data) if len(data) <= WINDOW_BYTES else (0, b"")
        return data[begin - first : end - first]

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place."""
        base = (0, self._position, self._size)[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        """The present place."""
        return self._position

    def close(self) -> None:
        """Fetch nothing more."""
        self.closed = True
        self.expect(())


def pieces_of(ranges: Iterable[tuple[int, int]]) -> list[_Piece]:
    """Requests for ranges, in the order in which these are needed."""
    joined = _joined([each for each in ranges if each[0] < each[1]])
    most = max(LEAST_BYTES, min(PIECE_BYTES, AHEAD_BYTES // max(2 * len(joined), 1)))
    pieces: list[tuple[int, _Piece]] = []
    for begin, end in joined:
        parts = -(-(end - begin) // most)
        edges = [begin + (end - begin) * part // parts for part in range(parts + 1)]
        pieces += [
            (place, _Piece(first, last))
            for place, (first, last) in enumerate(itertools.pairwise(edges))
        ]
    # Side by side: the first parts of all before the second of any. Ranges of one part keep theirs.
    pieces.sort(key=lambda each: each[0])
    return [piece for _, piece in pieces]


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges, neighbours as one where that makes no request too large."""
    joined: list[tuple[int, int]] = []
    for begin, end in ranges:
        if joined:
            first, last = joined[-1]
            if last <= begin <= last + GAP_BYTES and end - first <= PIECE_BYTES:
                joined[-1] = first, end
                continue
        joined.append((begin, end))
    return joined
