"""Lists of jobs, a line for each: what `shoal jobs` says of those here and in a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from shoal.base.words import duration


@dataclass(frozen=True)
class JobLine:
    """One job in a list.

    workers, servers: that run; None: none is to. namespace: empty for a job of this machine.
    """

    name: str
    state: str
    workers: int | None
    servers: int | None
    started: datetime
    namespace: str = ""

    def to_json(self) -> dict[str, Any]:
        """The line for programs."""
        return asdict(self) | {"started": self.started.isoformat()}


def jobs_table(title: str, lines: Sequence[JobLine], *, namespaces: bool = False) -> Table:
    """The jobs as `shoal jobs` shows them. namespaces: with that of each job."""
    table = Table(title=title)
    for name in (*(["namespace"] if namespaces else []), "job", "state", "workers", "servers"):
        table.add_column(name)
    table.add_column("age")
    now = datetime.now(UTC)
    for line in lines:
        counts = ("" if each is None else str(each) for each in (line.workers, line.servers))
        age = duration((now - line.started).total_seconds())
        where = [line.namespace] if namespaces else []
        table.add_row(*where, line.name, line.state, *counts, age)
    return table
