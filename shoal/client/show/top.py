"""`shoal top`: what a running job's processes do, drawn anew each second in a terminal.

Takes the master's status as it comes. Shares and rates are those of the last seconds, between two
statuses; of the whole time while there is only one. The lines on the whole job are display.py's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shoal.base.words import counted, duration, size
from shoal.client.show.course import Course
from shoal.client.show.drawn import block
from shoal.client.show.stages import shares
from shoal.proto import shoal_pb2 as pb

WINDOW_SECONDS = 10.0
"""Over which shares and rates are taken: a step's noise is gone, a change is seen soon."""

BAR = 24
"""Characters of a stage's whole bar."""

LEAST_SHARE = 0.005
"""Of the time, below which a stage is not drawn."""

_EIGHTHS = " ▏▎▍▌▋▊▉"


class Seen:
    """The statuses of the last seconds, and what they say together."""

    def __init__(self) -> None:
        self.course = Course()
        self._kept: deque[tuple[float, pb.JobStatus]] = deque()

    def add(self, status: pb.JobStatus, now: float) -> None:
        """The newest status, at a time in seconds of any clock that only grows."""
        self.course.update(status, now)
        self._kept.append((now, status))
        while now - self._kept[0][0] > WINDOW_SECONDS:
            self._kept.popleft()

    @property
    def status(self) -> pb.JobStatus:
        """The newest."""
        return self._kept[-1][1]

    @property
    def rates_known(self) -> bool:
        """True if the kept statuses have two different reports of every living server."""
        alive = [each for each in self.status.servers if each.state == "alive"]
        return all(self._server_before(each) is not None for each in alive)

    def stages(self) -> dict[str, float]:
        """The share of each stage in all workers' time."""
        total: dict[str, float] = {}
        for worker in self.status.workers:
            for name, seconds in self._recent(worker).items():
                total[name] = total.get(name, 0.0) + seconds
        return shares(total)

    def worker_stages(self, worker: pb.WorkerView) -> dict[str, float]:
        """The share of each stage in a worker's time."""
        return shares(self._recent(worker))

    def _recent(self, worker: pb.WorkerView) -> dict[str, float]:
        now = dict(worker.stage_seconds)
        for _, status in self._kept:
            for each in status.workers:
                same = (each.worker, each.incarnation) == (worker.worker, worker.incarnation)
                if same and each.stage_seconds:
                    recent = {n: max(0.0, s - each.stage_seconds[n]) for n, s in now.items()}
                    # Nothing was told since, or nothing was done.
                    return recent if any(recent.values()) else now
        return now

    def _server_before(self, server: pb.ServerView) -> pb.ServerStatus | None:
        """The first kept report of a server; None if there is no newer one."""
        for _, status in self._kept:
            for each in status.servers:
                same = (each.server, each.incarnation) == (server.server, server.incarnation)
                if same and 0 < each.told.seconds < server.told.seconds:
                    return each.told
        return None

    def server_rates(self, server: pb.ServerView) -> dict[str, float]:
        """Pulls and pushes a second, and cores in use; empty while that is not known."""
        before, now = self._server_before(server), server.told
        if before is None:
            return {}
        seconds = now.seconds - before.seconds
        return {
            "pulls": (now.pulls - before.pulls) / seconds,
            "pushes": (now.pushes - before.pushes) / seconds,
            "cores": (now.cpu_seconds - before.cpu_seconds) / seconds,
        }


def page(seen: Seen, rows: int, problem: str = "", *, keys: bool = True) -> Group:
    """All that is drawn, in about `rows` lines of a terminal.

    problem: why no newer status is there. keys: say which there are.
    """
    status = seen.status
    parts: list[RenderableType] = [block(status, seen.course)]
    if problem:
        parts.append(_line(f"the master does not answer: {problem}", "bold red"))
    if status.HasField("checkpoint_seconds"):
        ago = duration(status.checkpoint_seconds)
        parts.append(_line(f"the newest checkpoint is {ago} old", "dim"))
    if status.HasField("published_seconds"):
        ago = duration(status.published_seconds)
        parts.append(_line(f"the newest delta, number {status.delta}, is {ago} old", "dim"))
    stages = _stages(seen.stages())
    if stages is not None:
        parts += [Text(), stages]
    # What is above takes about so many lines; both tables have a head.
    left = max(4, rows - 12 - (stages.row_count if stages is not None else 0))
    servers = min(len(status.servers), max(2, left // 2))
    parts += [Text(), _servers(seen, status.servers, servers)]
    parts += [Text(), _workers(seen, status.workers, max(2, left - servers))]
    if status.messages:
        parts += [Text(), _line(status.messages[-1], "dim")]
    if keys:
        parts += [Text(), _line("q: quit", "dim")]
    return Group(*parts)


def _line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def bar(share: float, width: int = BAR) -> str:
    """A share as a bar of so many characters at 1, to an eighth of a character."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(width)


def _stages(found: Mapping[str, float]) -> Table | None:
    """A bar for each stage, waiting in another colour; None where no time was spent."""
    shown = {name: share for name, share in found.items() if share >= LEAST_SHARE}
    if not shown:
        return None
    table = Table.grid(padding=(0, 2))
    for name, share in shown.items():
        style = "yellow" if name.startswith("wait") else "cyan"
        table.add_row(
            Text(name, no_wrap=True), Text(bar(share), style=style), Text(f"{share:.0%}".rjust(4))
        )
    return table


def _table(*titles: str) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row(*(Text(title, style="dim", no_wrap=True) for title in titles))
    return table


def _row(table: Table, state: str, cells: Iterable[str]) -> None:
    style = {"alive": "", "dead": "red"}.get(state, "yellow")
    table.add_row(*(Text(each, style=style, no_wrap=True, overflow="ellipsis") for each in cells))


MORE: dict[str, Callable[[pb.ServerStatus], int]] = {
    "counted": lambda told: sum(table.counting for table in told.tables),
    "removed": lambda told: sum(
        table.removed.expired + table.removed.evicted for table in told.tables
    ),
}
"""Columns of servers whose tables count ids or remove rows, and their figures."""


def _servers(seen: Seen, servers: Sequence[pb.ServerView], most: int) -> Table:
    more = [name for name, count in MORE.items() if any(count(each.told) for each in servers)]
    table = _table(
        *("server", "state", "rows", *more, "memory", "pulls/s", "pushes/s", "cores", "restarts"),
        "",
    )
    for each in _worst_first(servers)[:most]:
        rates = seen.server_rates(each)
        told = each.told
        cells = [
            f"ps-{each.server}",
            each.state,
            f"{sum(table.rows for table in told.tables):,}",
            *(f"{MORE[name](told):,}" for name in more),
            size(sum(table.memory_bytes for table in told.tables)),
            *(f"{rates[name]:,.0f}" if rates else "" for name in ("pulls", "pushes")),
            f"{rates['cores']:.2f}" if rates else "",
            str(max(0, each.starts - 1)),
            each.progress or each.unprotected or told.clock_doubt,
        ]
        _row(table, each.state, cells)
    return _with_rest(table, len(servers) - most, "server")


def _workers(seen: Seen, workers: Sequence[pb.WorkerView], most: int) -> Table:
    table = _table("worker", "state", "busy with", "restarts", "task")
    for each in _worst_first(workers)[:most]:
        found = seen.worker_stages(each)
        busiest = sorted(found, key=lambda name: -found[name])[:2]
        busy = ", ".join(f"{name} {found[name]:.0%}" for name in busiest if found[name] > 0)
        cells = [
            f"worker-{each.worker}",
            each.state,
            busy if each.state == "alive" else "",
            str(max(0, each.starts - 1)),
            f"waiting for {each.waits_for}" if each.waits_for else _task(each),
        ]
        _row(table, each.state, cells)
    return _with_rest(table, len(workers) - most, "worker")


def _with_rest(table: Table, left_out: int, noun: str) -> Table:
    if left_out > 0:
        table.add_row(Text(f"... {counted(left_out, f'more {noun}')}", style="dim"))
    return table


def _worst_first(members: Sequence[pb.WorkerView | pb.ServerView]) -> list[Any]:
    """The members that are not alive, then the others, each in their order."""
    return sorted(members, key=lambda each: each.state == "alive")


def _task(worker: pb.WorkerView) -> str:
    if not worker.HasField("task"):
        return ""
    task = worker.task
    kind = pb.TaskKind.Name(task.kind).lower().replace("_", " ")
    if not task.range.source:
        return kind
    records = task.range.end - task.range.start
    done = f", {worker.records_done / records:.0%}" if records and task.kind == pb.TRAIN else ""
    file = task.range.source.rpartition("/")[2]
    place = f"{task.range.start:,}-{task.range.end:,} of {file}"
    return f"{kind} {place}{done}"
