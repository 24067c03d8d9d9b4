"""A model changes wholly or not at all; a server that has a part of a change ends itself.

Owns what becomes of an exception while values are written.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from shoal.proto.errors import WireError

logger = logging.getLogger(__name__)

EXIT_HALF_APPLIED = 70
"""The exit code of a server that ended itself, as its model had a part of a push."""


def end_at_once() -> NoReturn:
    """End the process: nobody may read what it holds, or have it written, any more."""
    os._exit(EXIT_HALF_APPLIED)


class Unbroken:
    """Changes of a server's model. end: ends the process, at once."""

    def __init__(self, end: Callable[[], NoReturn] = end_at_once) -> None:
        self._end = end

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Complete a change of the model, or end the process.

        A model that has a part of a push cannot be mended: done again, the push would be
        applied twice in part. The server's next incarnation starts from its checkpoint, and
        from its log, which has the push as a whole if it has it.
        """
        try:
            yield
        except WireError:
            raise  # of a log that another incarnation writes: this one takes no push any more
        except BaseException as error:
            self.end(error)

    def end(self, error: BaseException) -> None:
        """The model has a part of a change, because of this error."""
        logger.critical(
            "this server ends itself: a part of a push or of an update was applied, and not "
            "the whole of it. It is started again from what is saved",
            exc_info=error,
        )
        self._end()
