"""A model that follows a job: its newest rows and dense values, in this process.

Owns the thread that asks for the next delta, and the way on when it is damaged, of another chain
or lost: the same one again, and then the next base. Meanwhile what is here is served on.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from os import PathLike, fspath
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal.deltas.delta import Delta
from shoal.deltas.errors import DeltaError, NoDeltasError, NotKeptError, told
from shoal.deltas.live import Live, Models
from shoal.deltas.reading import Reader
from shoal.deltas.rows import Rows
from shoal.errors import Error, UserError
from shoal.files.storage import open_storage

if TYPE_CHECKING:
    from shoal.deltas.predicting import Predictor

POLL_SECONDS, REMOTE_POLL_SECONDS = 0.2, 1.0
"""Between two questions for the next delta: on this machine, and at a URL."""

GAP_SECONDS = 10.0
"""Without a next delta, after which the folder is asked if it is lost."""

TRIES = 3
"""Of a delta that cannot be read, before the next base is looked for."""

logger = logging.getLogger(__name__)


@dataclass
class Counts:
    """The numbers of events since the start."""

    deltas: int = 0
    bases: int = 0
    gaps: int = 0
    refused: int = 0
    lookups: int = 0
    predictions: int = 0
    seconds: float = 0.0
    """Of applying deltas."""


class Follower:
    """A model that follows what a job publishes, in a thread of its own.

    number: of the newest delta that it has; 0: of none. age: seconds since that was created;
    infinity without one. caught_up: it has had the newest one that there was. trouble: what keeps
    it from the next one, in words; else "". counts: of what happened. All methods may be called by
    any threads.
    """

    def __init__(
        self,
        url: str | PathLike[str],
        until: int | None = None,
        *,
        predict: bool = True,
        tables: Collection[str] = (),
    ) -> None:
        """url, until, predict, tables: as of `follow`. It does nothing before `start`."""
        self.url = fspath(url)
        self._until = until
        with told():
            root = open_storage(self.url)
        self._models, self._reader = Models(root, predict=predict, only=tables), Reader(root)
        self._poll = POLL_SECONDS if root.local_path("") is not None else REMOTE_POLL_SECONDS
        self._live: Live | None = None
        self.counts = Counts()
        self.caught_up, self.trouble = False, ""
        self._failures, self._asked = 0, time.monotonic()
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------ for users

    @property
    def number(self) -> int:
        """See the class."""
        return 0 if (live := self._live) is None else live.number

    @property
    def age(self) -> float:
        """See the class. By this machine's clock and the job's."""
        return math.inf if (live := self._live) is None else max(0.0, time.time() - live.created)

    @property
    def tables(self) -> list[str]:
        """The names of the tables that can be looked up."""
        return [*self.rows.tables]

    @property
    def rows(self) -> Rows:
        """The rows. Raises UserError before the first delta."""
        return self._here().rows

    def lookup(self, table: str, ids: Any) -> npt.NDArray[np.float32]:
        """The rows of ids, float32 [..., dim]. ids: integers or strings [...].

        An id without a row reads the default row, as in the job's exports. Raises UserError for
        another table, or ids of another dtype.
        """
        found = self.rows.table(table).lookup(ids)
        self.counts.lookups += int(np.size(ids))
        return found

    def predict(self, features: Any) -> Any:
        """The model's predictions for some records.

        features: a dict of the model's inputs by name, each an array or lists, of as many records;
        or the array itself of a model with one input. Returns a NumPy array, or if the model has
        several outputs, a dict of them by name. Raises UserError for features that do not fit, and
        if the model cannot predict here: only SavedModels of TensorFlow can.
        """
        outputs = self.predictor.predict(features)
        self.counts.predictions += 1
        return outputs["output"] if [*outputs] == ["output"] else outputs

    @property
    def predictor(self) -> Predictor:
        """The SavedModel. Raises UserError if there is none that predicts here."""
        live = self._here()
        if live.predictor is None:
            raise UserError(f"{self.url}: this model cannot predict here, {live.lacks}")
        return live.predictor

    def wait(self, number: int = 1, timeout: float | None = None) -> bool:
        """Wait until it has a delta of this number or a later one.

        timeout: in seconds; None: without end. Returns False if it ended, or was closed, before.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.number >= number or self._closed.is_set(), timeout)
            return self.number >= number

    def close(self) -> None:
        """End the thread. What was read is still here."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Follower:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------ the thread

    def start(self) -> None:
        """Begin to follow; the folder may come later."""
        self._thread = threading.Thread(target=self._run, name="follow", daemon=True)
        self._thread.start()

    def other(self) -> bool:
        """True if the folder has something that no job has published. Raises StorageError."""
        return self._reader.other()

    def begin(self) -> None:
        """Take the first base, in the caller's thread. Raises DeltaError and StorageError."""
        self._begin(self._reader.newest_base(self._until))

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                if self._step():
                    self._failures = 0
                    continue
                self.trouble = ""
            except Error as error:
                self._note(str(error))
            except Exception as error:  # also no memory: it is served on, and tried again
                self._note(f"{type(error).__name__}: {error}", error)
            self._closed.wait(self._poll)

    def _note(self, trouble: str, fault: Exception | None = None) -> None:
        """Tell of trouble, once. fault: of ours, with its traceback."""
        if trouble != self.trouble:
            logger.warning("%s", trouble, exc_info=fault)
        self.trouble = trouble

    def _step(self) -> bool:
        """Go one delta on, and return True; False if there is none now. Raises Error."""
        if not self.number:
            self.begin()
            return True
        if self._until is not None and self.number >= self._until:
            self.caught_up = True
            return False
        try:
            delta = self._reader.following()
            if delta is not None:
                self._apply(delta)
                return True
            self.caught_up = True
            if time.monotonic() - self._asked < GAP_SECONDS:
                return False
            self._asked = time.monotonic()
            if (problem := self._reader.gap()) is None:
                return False
        except DeltaError as error:
            self._failures += 1
            self.counts.refused += self._failures == 1
            if self._failures < TRIES:
                raise
            problem = error
        else:
            self.counts.gaps += 1
        if not self._rebase():
            raise problem
        return True

    def _rebase(self) -> bool:
        """Go on at a later base, or at any if the folder was begun anew; False without one."""
        try:
            base = self._reader.newest_base(self._until)
        except (NoDeltasError, NotKeptError):
            return False
        if base <= self.number and not self._reader.begun_anew():
            return False
        self._begin(base)
        return True

    def _begin(self, number: int) -> None:
        self._apply(self._reader.base(number))
        self.counts.bases += 1

    def _apply(self, delta: Delta) -> None:
        began = time.monotonic()
        live = self._live
        if live is None or live.of != delta.manifest["model"] or delta.number <= self.number:
            goes_on = live is not None and delta.number > live.number
            live = self._models.loaded(delta, live.rows if live and goes_on else None)
        live.rows.apply(delta)
        if live.predictor is not None:
            live.predictor.set_dense(delta.dense)
        self._reader.accept(delta)
        self.counts.deltas += 1
        self.counts.seconds += time.monotonic() - began
        self._asked = time.monotonic()
        with self._changed:
            self._live = replace(live, number=delta.number, created=delta.created)
            self.trouble = ""
            self._changed.notify_all()

    def _here(self) -> Live:
        if (live := self._live) is None:
            raise UserError(f"{self.url}: nothing has been read yet: {self.trouble or 'wait()'}")
        return live


def follow(
    url: str | PathLike[str],
    until: int | None = None,
    *,
    predict: bool = True,
    tables: Collection[str] = (),
) -> Follower:
    """Follow the model that a job publishes: `lookup` and `predict` answer with its newest values.

    url: the folder of shoal train --publish, a path or a URL. until: the number of the delta to
    stop at; None: it follows until it is closed, or the process ends. predict: False needs no
    TensorFlow. tables: those to keep, all by default; others take no memory, and with some left
    out the model cannot predict. Returns when the newest base is here.

    Raises NoDeltasError if there is none, UserError for a table that the model does not have,
    DeltaError or StorageError if it cannot be read.
    """
    follower = Follower(url, until, predict=predict, tables=tables)
    follower.begin()
    follower.start()
    return follower
