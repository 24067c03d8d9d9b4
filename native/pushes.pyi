from types import TracebackType
from typing import Self

class PushRecord:
    incarnation: int
    sequence: int
    task: int
    records_done: int
    pending: int
    fenced: int
    def acquire(self, blocking: bool = True) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    @property
    def address(self) -> int: ...
