"""A model that follows a job: its newest rows and dense values, in this process.

Owns the thread that goes along the folder's deltas, and how each is applied to the model that
answers meanwhile. What to do where one is missing is walking.py's.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection
from dataclasses import replace
from os import PathLike, fspath
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal.deltas.delta import Delta
from shoal.deltas.errors import told
from shoal.deltas.live import Live, Models
from shoal.deltas.rows import Rows
from shoal.deltas.walking import Walk
from shoal.errors import Error, UserError
from shoal.files.storage import open_storage

if TYPE_CHECKING:
    from shoal.deltas.predicting import Predictor

logger = logging.getLogger(__name__)


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
        with told():
            root = open_storage(self.url)
        self._models = Models(root, predict=predict, only=tables)
        self._walk = Walk(root, self._apply, until)
        self.counts = self._walk.counts
        self._live: Live | None = None
        self.caught_up, self.trouble = False, ""
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
        return self.rows.table(table).lookup(ids)

    def predict(self, features: Any) -> Any:
        """The model's predictions for some records.

        features: a dict of the model's inputs by name, each an array or lists, of as many records;
        or the array itself of a model with one input. Returns a NumPy array, or if the model has
        several outputs, a dict of them by name. Raises UserError for features that do not fit, and
        if the model cannot predict here: only SavedModels of TensorFlow can.
        """
        outputs = self.predictor.predict(features)
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
        return self._walk.reader.other()

    def step(self) -> bool:
        """Take a base or the next delta in the caller's thread, without `start`; True if one came.

        Raises DeltaError and StorageError.
        """
        return self._walk.step()

    @property
    def ended(self) -> bool:
        """True once it has delta `until`."""
        return self._walk.ended

    @property
    def checksum(self) -> str:
        """The checksum of the manifest of the newest delta."""
        return self._walk.reader.checksum

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                if self._walk.step():
                    continue
                self.caught_up, self.trouble = True, ""
            except Error as error:
                self._note(str(error))
            except Exception as error:  # also no memory: it is served on, and tried again
                self._note(f"{type(error).__name__}: {error}", error)
            self._closed.wait(self._walk.pause)

    def _note(self, trouble: str, fault: Exception | None = None) -> None:
        """Tell of trouble, once. fault: of ours, with its traceback."""
        if trouble != self.trouble:
            logger.warning("%s", trouble, exc_info=fault)
        self.trouble = trouble

    def _apply(self, delta: Delta) -> None:
        live = self._live
        if live is None or live.of != delta.manifest["model"] or delta.number <= self.number:
            goes_on = live is not None and delta.number > live.number
            live = self._models.loaded(delta, live.rows if live and goes_on else None)
        live.rows.apply(delta)
        if live.predictor is not None:
            live.predictor.set_dense(delta.dense)
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
    follower.step()
    follower.start()
    return follower
