"""The deltas of a folder in their order, for whoever keeps what they say in a store of its own.

Owns the way from a delta to the next one, and why there is none. What is in one is delta.py's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from os import PathLike, fspath

from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.deltas import chain
from shoal.deltas.delta import Delta
from shoal.deltas.errors import (
    AGAIN,
    DeltaError,
    ForeignDeltaError,
    NoDeltasError,
    NotKeptError,
    told,
)
from shoal.deltas.schema import Hint, LiveModelManifest
from shoal.files.storage import Storage, open_storage
from shoal.proto import shoal_pb2 as pb


def read(url: str | PathLike[str], after: int = 0, checksum: str = "") -> Iterator[Delta]:
    """Yield the deltas of a folder in their order, up to the newest one that is whole.

    url: the folder of --publish, a path or a URL. after: the number of the last one that the
    reader has; 0: it has none, and begins at the newest base, what it may hold of before is to be
    dropped. checksum: `Delta.checksum` of that last one, where it was kept: else the one that the
    folder has under its number counts. All of a delta is checked before it is given.

    Raises NoDeltasError, NotKeptError, ForeignDeltaError or DamagedDeltaError, all of which are a
    DeltaError, and StorageError if the folder cannot be read now.
    """
    with told():
        reader = Reader(open_storage(fspath(url)), after, checksum)
    delta = reader.following() if after else reader.base(reader.newest_base())
    while delta is not None:
        reader.accept(delta)
        yield delta
        delta = reader.following()
    if (problem := reader.gap()) is not None:
        raise problem


class Reader:
    """A place in a folder's chain of deltas.

    number, checksum: of the delta that was accepted last; 0 and "": of none.
    """

    def __init__(self, root: Storage, number: int = 0, checksum: str = "") -> None:
        self._root = root
        self.number, self.checksum = number, checksum
        self._model: tuple[object, LiveModelManifest, pb.ModelSpec] | None = None

    def following(self) -> Delta | None:
        """The delta after the last one; None if it is not there.

        Raises ForeignDeltaError, DamagedDeltaError and StorageError.
        """
        with told():
            if not chain.exists(self._root, self.number + 1):
                return None
            found = chain.read_delta(self._root, self.number + 1)
            if not self.checksum:
                self._find_last()
            previous = found.manifest["previous"]
            if self.checksum and previous != self.checksum:
                raise ForeignDeltaError(
                    f"{self._path(found.number)} does not follow on the delta {self.number} that "
                    f"was read: another job, or an older master, has written there; {AGAIN}"
                )
            return self._given(found)

    def accept(self, delta: Delta) -> None:
        """Go on behind a delta from now on."""
        self.number, self.checksum = delta.number, delta.checksum

    def base(self, number: int) -> Delta:
        """A base. Raises DamagedDeltaError and StorageError."""
        with told():
            return self._given(chain.read_delta(self._root, number))

    def newest_base(self, until: int | None = None) -> int:
        """The number of the newest base: by the hint, or if there is none, by the manifests.

        until: no newer one. Raises NoDeltasError, NotKeptError and StorageError.
        """
        with told():
            hint = self.hint()
            hinted = hint["base"] if hint is not None else 0
            if hinted and (until is None or hinted <= until) and chain.exists(self._root, hinted):
                return hinted
            numbers = chain.numbers(self._root)
            for number in reversed([each for each in numbers if until is None or each <= until]):
                with suppress(CheckpointError):
                    base = self._newest_base_at(number)
                    if base and chain.exists(self._root, base):
                        return base
        if not numbers:
            raise NoDeltasError(
                f"{self._root.location}: there is no delta here: give the folder of "
                "shoal train --publish, or wait until the job has published"
            )
        newest = "" if until is None else f" up to delta {until}"
        raise NotKeptError(f"{self._root.location}: there is no whole base{newest}")

    def hint(self) -> Hint | None:
        """The hint of where to begin; None if nothing says so."""
        try:
            return chain.read_hint(self._root)
        except CheckpointError:
            return None

    def gap(self) -> DeltaError | None:
        """The reason if the delta after the last one will not come; None if it may.

        Raises DamagedDeltaError and StorageError.
        """
        following = self.number + 1
        with told():
            if chain.exists(self._root, following):
                return None
            later = [each for each in chain.numbers(self._root) if each > following]
            if any(chain.exists(self._root, each) for each in later):
                # It may have come since it was looked for.
                if chain.exists(self._root, following):
                    return None
                return NotKeptError(
                    f"{self._path(following)} is not kept any more, or was lost: later deltas are "
                    f"there; {AGAIN}"
                )
        if not self.begun_anew():
            return None
        return ForeignDeltaError(
            f"{self._root.location}: delta {self.number}, which was read, is not there, nor a "
            f"later one: the folder was begun anew; {AGAIN}"
        )

    def begun_anew(self) -> bool:
        """True if the folder's delta of the last one's number is another, or gone.

        Raises DamagedDeltaError and StorageError.
        """
        if not self.number:
            return False
        with told():
            if not chain.exists(self._root, self.number):
                return True
            found = chain.read_delta(self._root, self.number).checksum
            return self.checksum not in ("", found)

    def other(self) -> bool:
        """True if the folder has something, and nothing that a job publishes.

        Raises StorageError.
        """
        with told():
            names = self._root.names()
        published = (chain.HINT, "delta-", "model-")
        return bool(names) and not any(each.startswith(published) for each in names)

    def _find_last(self) -> None:
        """Find the checksum of the last one, if its manifest is still there."""
        if self.number and chain.exists(self._root, self.number):
            self.checksum = chain.read_delta(self._root, self.number).checksum

    def _newest_base_at(self, number: int) -> int:
        """The newest base up to a delta; 0 if that is not whole."""
        if not chain.exists(self._root, number):
            return 0
        return chain.read_delta(self._root, number).manifest["newest_base"]

    def _given(self, found: chain.Delta) -> Delta:
        model = found.manifest["model"]
        if self._model is None or self._model[0] != model:
            self._model = (model, *chain.read_model(self._root, model))
        return Delta(self._root, found, *self._model[1:])

    def _path(self, number: int) -> str:
        return self._root.path(chain.delta_name(number))
