"""The last few things that were made, kept for when they are wanted again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """Values by key, of which those used last are kept.

    most: their weights together, as `weigh` has them; by default their number. The last one is
    kept in any case.
    """

    def __init__(self, most: float, weigh: Callable[[Value], float] = lambda _: 1) -> None:
        self._most = most
        self._weigh = weigh
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._weight = 0.0

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def __getitem__(self, key: Key) -> Value:
        self._values.move_to_end(key)
        return self._values[key]

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key, made if it is not there. What `make` raises passes through."""
        if key in self._values:
            return self[key]
        value = make()
        self._values[key] = value
        self._weight += self._weigh(value)
        while self._weight > self._most and len(self._values) > 1:
            _, oldest = self._values.popitem(last=False)
            self._weight -= self._weigh(oldest)
        return value

    def forget(self, key: Key) -> None:
        """Do not keep the value of a key."""
        if key in self._values:
            self._weight -= self._weigh(self._values.pop(key))

    def clear(self) -> None:
        """Keep nothing."""
        self._values.clear()
        self._weight = 0.0
