"""What one reader has told of its sources, for others."""

from __future__ import annotations

from shoal.data.places.index_store import IndexStore, Known


class Told:
    """Sources that were described, by their names."""

    def __init__(self):
        self.known: dict[str, Known] = {}

    def describe(self, reader):
        """Have a reader describe its sources, asking for nothing; returns these."""
        store = IndexStore()
        reader.share(store)
        with store.keeping():
            reader.prepare(reader.names())
            sources = [reader.describe(name) for name in reader.names()]
            self.known |= {source.name: store.told(source) for source in sources}
        return sources

    def to(self, reader):
        """A reader that is told."""
        reader.share(IndexStore(self.known.get))
        return reader
