"""Bounded queues between the threads of a worker, and reading ahead in one of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

from shoal.errors import Error
from shoal.worker.code.module import as_exception
from shoal.worker.reports.progress import Progress

Item = TypeVar("Item")

READ_AHEAD = 2
"""Batches that are read before they are taken, at least."""


class ChannelClosedError(Error):
    """Nothing more goes through the channel."""


class Channel(Generic[Item]):
    """A bounded queue between two threads that either side can end.

    `finish` lets the reader take what is there; `abort` ends both sides at once.
    """

    def __init__(self, size: int) -> None:
        self._items: deque[Item] = deque()
        self._size = size
        self._finished = False
        self._aborted = False
        self._changed = threading.Condition()

    def put(self, item: Item) -> None:
        """Wait for room and add an item. Raises ChannelClosedError once aborted."""
        with self._changed:
            self._changed.wait_for(lambda: self._aborted or len(self._items) < self._size)
            if self._aborted:
                raise ChannelClosedError
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> Item:
        """Wait for an item. Raises ChannelClosedError at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._aborted or self._items or self._finished)
            if self._aborted or not self._items:
                raise ChannelClosedError
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def resize(self, size: int) -> None:
        """Make room for this number of items from now on; more that are there stay."""
        with self._changed:
            self._size = size
            self._changed.notify_all()

    def finish(self) -> None:
        """The writer has no more items."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def abort(self) -> None:
        """End at once; items that were not taken are lost."""
        with self._changed:
            self._aborted = True
            self._changed.notify_all()


def taken(
    channel: Channel[Item], progress: Progress | None = None, stage: str = ""
) -> Iterator[Item]:
    """The items of a channel, to its end; the wait for each counts as `stage`."""
    while True:
        try:
            if progress is None:
                item = channel.get()
            else:
                with progress.stage(stage):
                    item = channel.get()
        except ChannelClosedError:
            return
        yield item


def read_ahead(
    items: Iterator[Item], progress: Progress | None, name: str = "read"
) -> Generator[Item, None, None]:
    """The items, read by a thread of this name, whose exception is raised in the item's place.

    progress: counts the wait for each item; None: it is not counted. Close the generator at the
    end: that ends the thread, and closes `items` if it is a generator.
    """
    channel: Channel[Item] = Channel(READ_AHEAD)
    errors: list[BaseException] = []

    def read() -> None:
        try:
            for item in items:
                channel.put(item)
        except ChannelClosedError:
            pass
        except BaseException as error:
            errors.append(error)
        finally:
            if isinstance(items, Generator):
                items.close()
            channel.finish()

    thread = threading.Thread(target=read, name=name)
    thread.start()
    try:
        yield from taken(channel, progress, "wait for data")
        if errors:
            raise as_exception(errors[0])
    finally:
        channel.abort()
        thread.join()
