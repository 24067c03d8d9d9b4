"""What the master wants to know of this worker's threads, and the answers for the next heartbeat.

The master cannot call a worker: it asks in its answer to a heartbeat, and hears with another one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from shoal.base.sampling import sampled_stacks
from shoal.base.stacks import process_stacks
from shoal.proto import shoal_pb2 as pb

logger = logging.getLogger(__name__)


class ToldStacks:
    """Of the worker with this index and incarnation. stopped: ends what takes longer."""

    def __init__(self, worker: int, incarnation: int, stopped: threading.Event) -> None:
        self._process, self._incarnation = f"worker-{worker}", incarnation
        self._stopped = stopped
        self._lock = threading.Lock()
        self._asked = [0, 0]  # questions for stacks, and for a profile, that were taken up
        self._stacks: pb.ProcessStacks | None = None
        self._profile: pb.ProcessStacks | None = None

    def fill(self, request: pb.HeartbeatRequest) -> None:
        """Put what is to be told into a heartbeat."""
        with self._lock:
            if self._stacks is not None:
                request.stacks.CopyFrom(self._stacks)
            if self._profile is not None:
                request.profile.CopyFrom(self._profile)

    def heard(self, request: pb.HeartbeatRequest) -> None:
        """The master has heard a heartbeat: what it told is not told again."""
        with self._lock:
            if self._stacks is not None and request.stacks.question == self._stacks.question:
                self._stacks = None
            if self._profile is not None and request.profile.question == self._profile.question:
                self._profile = None

    def asked(self, reply: pb.HeartbeatReply) -> bool:
        """Take up what the master wants, each question once; whether to beat again at once."""
        with self._lock:
            before, self._asked = self._asked, [reply.stacks_wanted, reply.profile_wanted]
        if reply.profile_wanted not in (0, before[1]):
            threading.Thread(
                target=self._sample,
                args=(reply.profile_wanted, reply.profile_seconds),
                name="profile",
                daemon=True,
            ).start()
        if reply.stacks_wanted in (0, before[0]):
            return False
        question = reply.stacks_wanted
        told = self._told(
            question, lambda: process_stacks(self._process, self._incarnation, question)
        )
        with self._lock:
            self._stacks = told
        return True

    def _told(self, question: int, look: Callable[[], pb.ProcessStacks]) -> pb.ProcessStacks:
        """What `look` returns, or why it failed: the heartbeat has to go on."""
        try:
            return look()
        except Exception as error:
            logger.exception("the stacks of this worker could not be told")
            return pb.ProcessStacks(question=question, problem=f"it failed: {error!r}")

    def _sample(self, question: int, seconds: float) -> None:
        told = self._told(
            question,
            lambda: sampled_stacks(
                self._process,
                seconds,
                self._stopped,
                incarnation=self._incarnation,
                question=question,
            ),
        )
        with self._lock:
            self._profile = told
