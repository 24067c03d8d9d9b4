"""The values that a job begins with: each server reads its own part once the model is known.

An export or a checkpoint does not fit into a worker. So each server reads its part as soon as a
worker has told it the model: at the job's beginning, and again if it is started again and there
is no checkpoint. Owns the thread that does this. The reading itself is saved_rows.py's
(`--restore-from`, and rows that the user's model brings) and continued.py's (`--continue-from`).
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from shoal.files.storage import Storage
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing
from shoal.ps.model.tables import ServerModel
from shoal.ps.saved.progress import Progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Given(ABC):
    """The values at a path or URL that server `server` of `routing.servers` begins with.

    progress: is told what is read. opened: as `newest_shard` takes it.
    """

    location: str
    server: int
    routing: Routing
    progress: Progress
    opened: Callable[[str], Storage]

    @abstractmethod
    def read(self, spec: pb.ModelSpec) -> ServerModel:
        """The model of `spec` with its rows and dense values.

        Raises UserError naming the variable, table or file at fault, StorageError, StoppedError;
        WireError for a model that this version does not know.
        """


class Beginning:
    """The model of one server, while it is read from what was given, and then.

    failure: why it cannot be had; then the server is of no use.
    """

    def __init__(self, given: Given) -> None:
        self._given = given
        self._thread: threading.Thread | None = None
        self._model: ServerModel | None = None
        self.failure: Exception | None = None

    def model(self, spec: pb.ModelSpec) -> ServerModel:
        """The model of `spec` with its rows and dense values.

        Begins to read them at the first call. Raises WireError(NOT_READY) until they are
        read, so that nobody holds a thread of the server meanwhile. Not by two threads at once.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(spec,), name="beginning")
            self._thread.daemon = True
            self._thread.start()
        self.check_ready()
        assert self._model is not None
        return self._model

    def check_ready(self) -> None:
        """Raises WireError(NOT_READY) while it is being read, and if it could not be."""
        if self._thread is not None and self._model is None:
            raise WireError(pb.NOT_READY, f"the server is to read {self._given.location} first")

    def _run(self, spec: pb.ModelSpec) -> None:
        try:
            self._model = self._given.read(spec)
            logger.info("has its shard of %s", self._given.location)
        except Exception as error:
            # For the process's own thread, which ends it, and says why.
            self.failure = error
        finally:
            self._given.progress.end()
