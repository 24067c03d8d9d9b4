"""The columns of a minibatch as feed_batch gets them, which tell what it takes of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from shoal.data.columns import Column
from shoal.data.pieces import copied
from shoal.errors import Error


class UnreadColumnError(Error):
    """Columns that the function takes were not read, as it took none of them so far."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(f"not read: {', '.join(sorted(names))}")
        self.names = frozenset(names)


if TYPE_CHECKING:
    _Dict = dict[str, Any]
else:

    class _Dict(MutableMapping, dict):
        """A dict, with the methods that come from item by item."""


class TakenColumns(_Dict):
    """The columns by name, each a copy that is the function's own.

    A dict, as far as anybody asks, with nothing in the dict itself: what C code copies of a dict
    behind its methods' back would be seen by nobody. taken: the columns whose values were asked
    for. unread: those of them that were not read. absent: names that there are not.
    """

    def __init__(self, columns: Mapping[str, Column], names: Sequence[str]) -> None:
        """columns: that were read. names: of all that there are, in order."""
        self.taken: set[str] = set()
        self.unread: set[str] = set()
        self.absent: set[str] = set()
        self._columns = columns
        self._own: dict[str, Any] = {}
        self._names = dict.fromkeys(names)

    def __getitem__(self, name: str) -> Any:
        """A column. Raises KeyError if there is none, UnreadColumnError if it was not read."""
        if name in self._own:
            return self._own[name]
        if name not in self._names:
            self.absent.add(name)
            raise KeyError(name)
        self.taken.add(name)
        if name not in self._columns:
            self.unread.add(name)
            raise UnreadColumnError({name})
        self._own[name] = copied(self._columns[name])
        return self._own[name]

    def __setitem__(self, name: str, value: Any) -> None:
        """Replace or add a column, for this call alone."""
        self._names[name] = None
        self._own[name] = value

    def __delitem__(self, name: str) -> None:
        """Remove a column, for this call alone."""
        del self._names[name]
        self._own.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        """The names, which take nothing."""
        return iter(list(self._names))

    def __reversed__(self) -> Iterator[str]:
        """The names from the last one on."""
        return reversed(list(self._names))

    def __len__(self) -> int:
        """The number of columns."""
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        """True if there is such a column; takes nothing."""
        return name in self._names

    def __repr__(self) -> str:
        """The names; takes nothing."""
        return f"<columns {', '.join(self._names)}>"

    def copy(self) -> dict[str, Any]:
        """All columns, which are taken by that."""
        return dict(self.items())

    def __reduce__(self) -> Any:
        return dict, (self.copy(),)

    def __or__(self, other: Any) -> Any:
        return self.copy() | dict(other)

    def __ror__(self, other: Any) -> Any:
        return dict(other) | self.copy()

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self
