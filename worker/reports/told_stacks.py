"""The stacks of this worker's threads: the master's questions, and the answers to them.

The master cannot call a worker: it asks in its answer to a heartbeat, and the next one answers.
"""

from __future__ import annotations

import logging
import threading

from shoal.base.modules.stacks import process_stacks
from shoal.proto import shoal_pb2 as pb

logger = logging.getLogger(__name__)


class ToldStacks:
    """The stacks of the worker with this index and incarnation."""

    def __init__(self, worker: int, incarnation: int) -> None:
        self._process, self._incarnation = f"worker-{worker}", incarnation
        self._lock = threading.Lock()
        self._asked = 0  # the last question that was taken up
        self._stacks: pb.ProcessStacks | None = None

    def fill(self, request: pb.HeartbeatRequest) -> None:
        """Put what is to be told into a heartbeat."""
        with self._lock:
            if self._stacks is not None:
                request.stacks.CopyFrom(self._stacks)

    def heard(self, request: pb.HeartbeatRequest) -> None:
        """The master has heard a heartbeat: what it told is not told again."""
        with self._lock:
            if self._stacks is not None and request.stacks.question == self._stacks.question:
                self._stacks = None

    def asked(self, reply: pb.HeartbeatReply) -> bool:
        """Take up what the master wants, each question once; whether to beat again at once."""
        question = reply.stacks_wanted
        with self._lock:
            before, self._asked = self._asked, question
        if question in (0, before):
            return False
        try:
            told = process_stacks(self._process, self._incarnation, question)
        except Exception as error:  # the heartbeat has to go on
            logger.exception("the stacks of this worker could not be told")
            told = pb.ProcessStacks(question=question, problem=f"it failed: {error!r}")
        with self._lock:
            self._stacks = told
        return True
