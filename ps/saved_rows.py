"""A server that is started again where no checkpoint is: its rows from --restore-from.

What the job began with was given to the servers by a worker, once. A server that has lost its
share takes it from the same export or checkpoint by itself, as soon as a worker has told it
what the tables are. Owns the thread that does this; reading is shoal.checkpoints.saved's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import numpy as np

from shoal.checkpoints.saved import open_saved
from shoal.checkpoints.storage import Storage
from shoal.errors import StorageError, UserError
from shoal.native import ids as native_ids
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.routing import Routing
from shoal.ps.progress import Progress, StoppedError
from shoal.ps.tables import ServerModel

logger = logging.getLogger(__name__)


class SavedRows:
    """The rows at `location` that belong to `server`. opened: as `newest_share` takes it."""

    def __init__(
        self,
        location: str,
        server: int,
        routing: Routing,
        progress: Progress,
        opened: Callable[[str], Storage],
    ) -> None:
        self._location = location
        self._progress = progress
        self._opened = opened
        self._server = server
        self._routing = routing
        self._thread: threading.Thread | None = None
        self._model: ServerModel | None = None
        self._problem = ""

    def model(self, spec: pb.ModelSpec) -> ServerModel:
        """The model of `spec` with its rows.

        Begins to read them at the first call. Raises WireError: NOT_READY until they are
        read, so that nobody holds a thread of the server meanwhile; CHECKPOINT_FAILED if
        they cannot be. Not by two threads at once.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, args=(spec,), name="saved-rows")
            self._thread.daemon = True
            self._thread.start()
        if self._problem:
            raise WireError(pb.CHECKPOINT_FAILED, self._problem)
        if self._model is None:
            raise WireError(pb.NOT_READY, f"reading {self._location} (--restore-from)")
        return self._model

    def _read(self, spec: pb.ModelSpec) -> None:
        self._progress.begin("read the rows of --restore-from")
        try:
            model = ServerModel(spec, self._server, self._routing.servers)
            saved = open_saved(self._location, self._opened)
            for position, table in enumerate(spec.tables):
                for ids, rows in saved.rows(table.name, table.dim):
                    self._progress.advance(ids.nbytes + rows.nbytes)
                    owned = self._routing.owners[native_ids.slot_of(ids)] == self._server
                    if owned.any():
                        model.assign(position, ids[owned], np.ascontiguousarray(rows[owned]))
        except StoppedError:
            self._problem = "the server ends"
        except (UserError, StorageError, WireError, OSError) as error:
            self._problem = str(error)
            logger.error("the rows of --restore-from cannot be read: %s", error)
        except Exception as error:
            self._problem = f"--restore-from: {self._location} cannot be read: {error!r}"
            logger.exception("the rows of --restore-from cannot be read")
        else:
            logger.info("has the rows of %s", self._location)
            self._model = model
        finally:
            self._progress.end()
