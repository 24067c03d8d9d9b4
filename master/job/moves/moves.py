"""Moves of routing slots between servers: which table holds, and what becomes of the next one.

A move leads to the table of the next epoch. It is written down when it begins, and again when it is
committed (`_commit_move` of calls/server_work.py): that is the one moment from which the new table
holds. A master that was started again gives up a move that was not decided by then, and completes
one that was. Servers come by a move, and leave by one. Owns that state; the calls are
move_slots.py's, which slots go where is placement.py's. No I/O, no clock.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.base.transitions import Transitions
from shoal.base.words import counted, size
from shoal.config.job import JobConfig
from shoal.master.job import events
from shoal.master.job.heard import hears
from shoal.master.job.instructions import (
    Instruction,
    MoveSlots,
    SettleServers,
    StartProcess,
    TerminateProcess,
)
from shoal.master.job.members.members import ProcessState, ServerMember
from shoal.master.job.members.membership import Membership
from shoal.master.job.moves.departures import Departures
from shoal.master.job.moves.placement import Weights, balanced
from shoal.master.work.ids import ServerId, Start
from shoal.master.work.phases import Phase
from shoal.master.work.record import JobRecord
from shoal.proto import shoal_pb2 as pb
from shoal.proto.errors import WireError
from shoal.proto.values.routing import Routing
from shoal.proto.wire.backoff import doubled_seconds

RETRY_SECONDS = (3.0, 60.0)
"""Before a move that failed is tried again: first, which doubles, and at most."""

TRIES = 5
"""Moves that may fail, one after the other, until the servers stay as they are; not counted are
those during which a server has died, which is started again."""


class Moving(enum.Enum):
    """The state of the next move."""

    IDLE = "none is under way"
    BEGUN = "rows move"
    SETTLING = "it is decided, or given up, and the servers are told"


TRANSITIONS = Transitions(
    "the move under way",
    {
        Moving.IDLE: {Moving.BEGUN, Moving.IDLE},
        Moving.BEGUN: {Moving.SETTLING, Moving.IDLE},
        Moving.SETTLING: {Moving.IDLE, Moving.SETTLING},
    },
)


_TABLES = ("routing", "_next", "_wanted")


@hears("ordered")
class Moves:
    """The moves of one job.

    routing: the table that holds. attempt: how many moves have begun. count, failures: of moves
    that were completed and given up. wants_checkpoint: a move was completed, and no checkpoint has
    been begun since. unsaved: one was decided, and no checkpoint has been completed since: logs at
    servers have ended, and the next ones do not protect yet. departures: servers that were told to
    end. ordered: the table of a move that is to begin, if nothing else is wanted before.
    """

    def __init__(
        self,
        config: JobConfig,
        members: Membership,
        record: JobRecord,
        instructions: list[Instruction],
    ) -> None:
        self._logs_at_servers = config.log_at_servers
        self._members = members
        self._record = record
        self._instructions = instructions
        self.routing = Routing.even(config.num_servers)
        self.servers_wanted = config.num_servers
        self.count = self.failures = self.attempt = 0
        self.wants_checkpoint = self.unsaved = False
        self.departures = Departures()
        self._stage = Moving.IDLE
        self.ordered: pb.RoutingTable | None = None
        self._next: Routing | None = None  # the table that the move under way leads to
        self._wanted: Routing | None = None  # by weights, once
        self._spreading = False  # equal shares of another number of servers are not reached yet
        self._tries = 0
        self._after = 0.0
        self._with: list[Start] = []  # the servers with which the move under way began

    def __getstate__(self) -> dict[str, Any]:
        # Tables as they travel: a job's state has no arrays.
        tables = {name: getattr(self, name) for name in _TABLES}
        packed = {name: table and table.to_message() for name, table in tables.items()}
        return vars(self) | packed

    def __setstate__(self, state: dict[str, Any]) -> None:
        tables = {name: state[name] for name in _TABLES}
        vars(self).update(state)
        for name, table in tables.items():
            setattr(self, name, table and Routing.from_message(table))

    @property
    def under_way(self) -> bool:
        """True if a move is under way, or about to be."""
        return self.ordered is not None or self.begun_or_settling

    @property
    def begun_or_settling(self) -> bool:
        """True if rows move, by the journal: a move that is about to begin is not in it."""
        return self._stage is not Moving.IDLE

    @property
    def pending(self) -> bool:
        """True if servers are to come or to leave, or slots to move."""
        changes = self.servers_wanted != self.routing.servers
        return self.under_way or changes or self._spreading or self._wanted is not None

    def _go(self, target: Moving) -> None:
        self._stage = TRANSITIONS.step(self._stage, target)
        self.ordered = None

    def _equal(self) -> bool:
        """True if the servers that are wanted have equal shares, but for those that are absent."""
        servers = self.servers_wanted
        if servers != self.routing.servers:
            return False
        owners = balanced(self.routing.owners, servers, absent=self.routing.absent)
        return np.array_equal(owners, self.routing.owners)

    # ------------------------------------------------------------ what is wanted

    def check_servers(self, count: int) -> None:
        """Raises WireError(BAD_REQUEST) if the job cannot have so many servers."""
        if self._logs_at_servers and count < 2:
            raise WireError(
                pb.BAD_REQUEST,
                "the servers of this job keep each other's logs of updates, which takes two",
            )

    def want_servers(self, event: events.ServersWanted, now: float) -> None:
        """So many servers are wanted from now on."""
        self.servers_wanted = event.servers
        self.ordered = None  # by what was wanted before
        self._spreading = self._next is not None or not self._equal()
        self._tries = 0
        reason = f": {event.why}" if event.why else ""
        self._record.note(now, f"{counted(event.servers, 'server')} from now on{reason}")
        self._have_joiners(now)
        if not self.begun_or_settling:
            self._dismiss()

    def _have_joiners(self, now: float) -> None:
        for index in (*self.routing.absent, *self._coming):
            if (server := ServerId(index)) not in self._members.joining:
                member = self._members.join_server(server)
                self._instructions.append(StartProcess(Start(server, member.start(now))))

    def _dismiss(self) -> None:
        """Let go of servers that were to come and are not wanted any more."""
        for member in list(self._members.joining.values()):
            if member.id.index >= max(self.servers_wanted, self.routing.servers):
                self._leave(member)

    def _leave(self, member: ServerMember) -> None:
        self._members.server_left(member.id)
        if member.state is not ProcessState.DEAD:
            self._instructions.append(TerminateProcess(Start(member.id, member.incarnation)))

    def rebalanced(self, weights: Weights | None) -> pb.RoutingTable | None:
        """The table of equal shares; None if nothing would move. weights: as of `balanced`."""
        before = self.routing
        owners = balanced(before.owners, before.servers, weights, 0.05, before.absent)
        if np.array_equal(owners, before.owners):
            return None
        return self._table(owners, before.servers, before.absent).to_message()

    def departs(self, member: ServerMember, seconds: float, now: float, *, able: bool) -> bool:
        """A server was told to end: whether it serves on, and gives what it has to the others.

        seconds: until it is killed. able: rows may move at all. With logs at servers nothing would
        be won: what has moved is safe with the next checkpoint only. The first server has dense
        slices always.
        """
        start = Start(member.id, member.incarnation)
        able = able and not self._logs_at_servers and member.id.index > 0
        if not self.departures.known(start):
            self.departures.ask(start, seconds if able else 0.0, now)
            if self.departures.waits(start, now):
                told = f"{member.id} is told to end; first its rows move to the other servers"
                self._record.note(now, told)
        if self._next is not None and member.id.index in self._next.absent:
            return True
        if able and self.departures.waits(start, now):
            return True
        self.departures.refuse(start)
        return False

    def want_table(self, event: events.TableWanted, now: float) -> None:
        """Slots are to be where this table says."""
        self._spreading = False
        self.ordered = None
        self._wanted = Routing.from_message(event.table)
        self._tries = 0
        self._record.note(now, event.why)

    def _table(self, owners: np.ndarray, servers: int, absent: Sequence[int] = ()) -> Routing:
        dense = min(servers, self.servers_wanted, *absent)
        return Routing(self.routing.epoch + 1, servers, owners, dense, tuple(absent))

    def _wanted_next(self, now: float) -> tuple[np.ndarray, int, Sequence[int]] | None:
        """The owners of slots after the next move, the number of servers, and those absent then.

        None: nothing is to move.
        """
        leaving = self.departures.due(self._members, now)
        if leaving:
            # At once, whatever else is wanted: they have little time.
            return self._among(self.routing.servers, [*self.routing.absent, *leaving])
        absent = [each for each in self.routing.absent if not self._is_there(each)]
        if any(not self._is_there(index) for index in self._coming):
            # They may take long to come. One that is back does not wait for them.
            back = len(absent) < len(self.routing.absent)
            return self._among(self.routing.servers, absent) if back else None
        owners = self._owners_wanted(absent)
        if owners is None:
            return None
        return owners, self.servers_wanted, absent

    def _among(self, servers: int, absent: list[int]) -> tuple[np.ndarray, int, Sequence[int]]:
        return balanced(self.routing.owners, servers, absent=absent), servers, sorted(absent)

    @property
    def _coming(self) -> range:
        return range(self.routing.servers, self.servers_wanted)

    def _is_there(self, index: int) -> bool:
        """True if a server that is to come, or to come back, has registered."""
        member = self._members.joining.get(ServerId(index))
        return member is not None and member.state is ProcessState.ALIVE

    def _owners_wanted(self, absent: Sequence[int]) -> np.ndarray | None:
        """The owners of all slots in the end; None if they have them."""
        changes = self.servers_wanted != self.routing.servers
        if changes or self._spreading or len(absent) < len(self.routing.absent):
            staying = [each for each in absent if each < self.servers_wanted]
            owners = balanced(self.routing.owners, self.servers_wanted, absent=staying)
            same = not changes and len(absent) == len(self.routing.absent)
            if same and np.array_equal(owners, self.routing.owners):
                return None
        elif self._wanted is not None:
            owners = self._wanted.owners
        else:
            return None
        return owners

    # ------------------------------------------------------------ the course of a move

    def tick(self, phase: Phase, now: float, *, may_move: bool) -> None:
        """Begin a move if one is wanted.

        may_move: no checkpoint is under way, and no export reads the rows of server after server.
        """
        ready = phase is Phase.TRAINING and self._members.servers_ready and may_move
        # A push of a dead worker may be on some servers only, which they have to say before others
        # are in their place.
        ready = ready and not self._members.fencing
        if self.under_way or not ready or now < self._after:
            return
        wanted = self._wanted_next(now)
        if wanted is None:
            return
        owners, servers, absent = wanted
        table = self._table(owners, servers, [each for each in absent if each < servers])
        self.ordered = table.to_message()
        self._instructions.append(MoveSlots(self.ordered))

    def called_off(self) -> None:
        """The move that was about to begin does not: meanwhile rows have to stay."""
        self.ordered = None

    def begun(self, event: events.MoveBegun, _: float) -> int:
        """Rows begin to move; returns the number of this attempt."""
        self._next = Routing.from_message(event.table)
        self.attempt += 1
        self._with = self._alive()
        self._go(Moving.BEGUN)
        return self.attempt

    def _alive(self) -> list[Start]:
        there = self._members.servers_and_joining
        alive = ProcessState.ALIVE
        return [Start(each.id, each.incarnation) for each in there if each.state is alive]

    def committed(self, now: float) -> None:
        """The rows are where they are to be: from now on the new table holds."""
        table, self._next = self._next, None
        assert table is not None
        before, self.routing = self.routing, table
        self.unsaved = True
        if self._spreading:
            self._wanted = None
            self._spreading = not self._equal()
        elif self._wanted is not None and np.array_equal(table.owners, self._wanted.owners):
            self._wanted = None
        self._go(Moving.SETTLING)
        if (table.servers, table.absent) != (before.servers, before.absent):
            self._wanted = None
        for server in map(ServerId, sorted(set(table.present) - set(before.present))):
            self._members.server_joined(server)
        for server in map(ServerId, sorted(set(before.present) - set(table.present))):
            self.departures.left(self._members.servers[server])
            self._leave(self._members.servers[server])
        # More may be wanted by now than when the move began.
        self._have_joiners(now)

    def ended(self, event: events.MoveEnded, now: float) -> None:
        """All servers know that the move is over."""
        self._go(Moving.IDLE)
        self._tries = 0
        self.count += 1
        self.wants_checkpoint = True
        self._dismiss()
        if event.slots < 0:
            self._record.note(now, "rows have moved; how many the master before this one knew")
            return
        self._record.note(
            now,
            f"{event.slots:,} of {self.routing.owners.size:,} slots have moved, {event.rows:,} "
            f"rows and {size(event.size)}, in {event.seconds:.1f} s; no push was taken for "
            f"{event.paused * 1000:.0f} ms",
        )

    def failed(self, event: events.MoveFailed, now: float) -> None:
        """The move was given up, and all servers know it: the table stays."""
        leaving = () if self._next is None else self._next.absent
        self._next = None
        self._spreading = self._spreading and not self._equal()
        for server in map(ServerId, leaving):
            if (member := self._members.servers.get(server)) is not None:
                self.departures.refuse(Start(server, member.incarnation))
        self._go(Moving.IDLE)
        self.failures += 1
        self._tries += set(self._with) <= set(self._alive())
        self._after = now + doubled_seconds(max(1, self._tries), *RETRY_SECONDS)
        said = f"warning: rows could not be moved, and stay where they are: {event.why}"
        # One that is not started again is of no use for another try.
        gone = any(each.state is ProcessState.DEAD for each in self._members.joining.values())
        if self._tries < TRIES and not gone:
            self._dismiss()
            self._record.note(now, f"{said}; it is tried again")
            return
        self._record.note(now, f"{said}. It was tried {counted(self._tries, 'time')}")
        self._give_up()

    def _give_up(self) -> None:
        self.servers_wanted, self._wanted, self._tries = self.routing.servers, None, 0
        self._spreading = False
        self.ordered = None
        self._dismiss()

    def joiner_failed(self, why: str, now: float) -> None:
        """A server that was to come cannot be started."""
        self._record.note(now, f"warning: {why}. The servers stay as they are")
        if not self.begun_or_settling:
            self._give_up()

    # ------------------------------------------------------------ other masters, other courses

    def master_restarted(self) -> None:
        """Tell the servers which table holds, if a move was under way."""
        self.ordered = None
        if self.begun_or_settling:
            decided = self._stage is Moving.SETTLING
            self._instructions.append(SettleServers(decided))

    def keeps_table(self, servers: int) -> bool:
        """True if so many servers go on by the present table when the job is resumed."""
        return servers == self.routing.servers == self.routing.dense

    def resumed(self, config: JobConfig) -> None:
        """The job goes on with new processes, of which so many are servers."""
        self._logs_at_servers = config.log_at_servers
        epoch = self.routing.epoch + 1
        # By the same table, no row has to be read from another server's files.
        if self.keeps_table(config.num_servers):
            self.routing = Routing(epoch, config.num_servers, self.routing.owners)
        else:
            self.routing = Routing.even(config.num_servers, epoch)
        self.servers_wanted = config.num_servers
        self._stage, self._next, self._wanted = Moving.IDLE, None, None
        self.ordered = None
        self._spreading = False
        self._tries, self._after = 0, 0.0
        self.departures = Departures()
        self.wants_checkpoint = self.unsaved = False
