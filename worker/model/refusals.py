"""The errors that lookups raise while a model is traced."""

from __future__ import annotations

from typing import NoReturn

from shoal.errors import UserError


class Refusals:
    """The errors that lookups raised.

    Keras and AutoGraph rewrite an exception that passes through them; whoever traces a
    model finds the original here.
    """

    def __init__(self) -> None:
        self.last: UserError | None = None

    def refuse(self, message: str) -> NoReturn:
        """Raises UserError with `message`, and keeps it."""
        self.last = UserError(message)
        raise self.last
