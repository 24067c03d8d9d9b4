"""Tables of MaxCompute (ODPS), through pyodps and its tunnel, as Arrow.

A flag's value is `odps://PROJECT/TABLE`, with `?partition=NAME=VALUE,...` for one partition.
A download session is a snapshot of the table; it is opened once per job, and every process
reads from that one. pyodps is the user's to install, its credentials are in environment
variables. Written against pyodps and tested with a small local server that speaks as much
of the tunnel's protocol as is needed here, not against the service itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa

from shoal.data.indexed_reader import IndexedReader
from shoal.data.reader import Source, check_not_empty, check_range
from shoal.errors import UnreadableError, UserError

SCHEME = "odps://"

VARIABLES = ("ODPS_ACCESS_ID", "ODPS_ACCESS_KEY", "ODPS_ENDPOINT")
"""Environment variables that must be set; ODPS_TUNNEL_ENDPOINT may be."""


class OdpsReader(IndexedReader):
    """Reads a table, or one partition of it.

    pattern: odps://PROJECT/TABLE or odps://PROJECT/TABLE?partition=NAME=VALUE,...
    options: see IndexedReader; its index is the session's name.

    Raises UserError for a value of another form, and where pyodps or a variable is missing.
    """

    def __init__(self, pattern: str, **options: Any) -> None:
        super().__init__(pattern, **options)
        self._name = pattern
        self._session: Any = None
        self._identity = ""  # of the session that it stands for
        parts = urlsplit(pattern)
        given = parse_qs(parts.query)
        self._project, self._table = parts.netloc, parts.path.strip("/")
        self._partition = given.get("partition", [None])[-1]
        if not self._project or not self._table or set(given) - {"partition"}:
            raise UserError(
                f"{self._flag}: {pattern} must be odps://PROJECT/TABLE or "
                "odps://PROJECT/TABLE?partition=NAME=VALUE"
            )
        self._tunnel = self._connect()

    def _connect(self) -> Any:
        try:
            from odps import ODPS
            from odps.tunnel import TableTunnel
        except ImportError as error:
            raise UserError(
                f"{self._flag}: {self._name} needs pyodps; install it with: "
                "pip install 'shoal[odps]'"
            ) from error
        if missing := [name for name in VARIABLES if not os.environ.get(name)]:
            raise UserError(
                f"{self._flag}: {self._name} needs the environment variable {missing[0]}"
            )
        access, secret, endpoint = (os.environ[name] for name in VARIABLES)
        tunnel = os.environ.get("ODPS_TUNNEL_ENDPOINT") or None
        client = ODPS(access, secret, self._project, endpoint=endpoint, tunnel_endpoint=tunnel)
        return TableTunnel(client, endpoint=tunnel)

    def _open(self, identity: str | None) -> Any:
        with self._reporting():
            return self._tunnel.create_download_session(
                self._table, partition_spec=self._partition, download_id=identity
            )

    def _opened(self) -> Any:
        """The job's session. The records of one that has expired must still be as many."""

        def begin() -> pa.Table:
            if self._session is None:
                self._session = self._open(None)
                self._identity = self._session.id
            return pa.table({"id": [self._identity], "records": [self._session.count]})

        kept = self._store.get("odps", self._name, "", begin).to_pylist()[0]
        if self._session is None or self._identity != kept["id"]:
            session = self._open(kept["id"])
            if session.status is not type(session).Status.Normal:
                session = self._open(None)
            if session.count != kept["records"]:
                raise UserError(
                    f"{self._name}: {session.count} records where {kept['records']} were "
                    "counted: the table was changed while the job read it"
                )
            self._session, self._identity = session, kept["id"]
        return self._session

    def sources(self) -> list[Source]:
        """The table or partition."""
        found = [Source(self._name, self._opened().count)]
        check_not_empty(found, self._name, self._flag)
        return found

    def _full_schema(self) -> pa.Schema:
        # As the tunnel gives them.
        self.sources()  # there is a first record
        first = next(iter(self._batches(0, 1, None)))
        return first.schema.remove_metadata()

    def read(self, source: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield RecordBatches as the tunnel sends them."""
        names = self.schema().names
        check_range(Source(source, self._opened().count), start, end)
        seen = start
        for batch in self._batches(start, end, names) if start < end else ():
            seen += batch.num_rows
            yield batch.select(names)
        if seen != end:
            raise UserError(
                f"{self._name}: the tunnel gave {seen - start} records from record {start} on, "
                f"not {end - start}"
            )

    def _batches(
        self, start: int, end: int, columns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatch]:
        with self._reporting(f"records {start} to {end - 1}: "):
            reader = self._opened().open_arrow_reader(start, end - start, columns=columns)
            while (batch := reader.read_next_batch()) is not None:
                yield batch

    @contextmanager
    def _reporting(self, what: str = "") -> Iterator[None]:
        """Turns pyodps's and the network's errors into a UserError."""
        from odps.errors import BaseODPSError, InternalServerError

        try:
            yield
        except (BaseODPSError, OSError, pa.ArrowException) as error:
            message = f"{self._flag}: {self._name}: {what}{' '.join(str(error).split())}"
            if isinstance(error, OSError | InternalServerError):
                raise UnreadableError(message, may_be_mistake=True) from error
            raise UserError(message) from error
