"""The language of --kill, --pause, --cut, --fill and the like: text to faults. No I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shoal.errors import UserError
from shoal.proto.faults import POINTS
from shoal.tools.chaos.damage import FILES, FLIP, REMOVE
from shoal.tools.chaos.faults import (
    FAIL,
    HALF_SENT_COUNT,
    HANG,
    JOB,
    PHASES,
    STORAGES,
    Cut,
    DisturbStorage,
    Fault,
    Fill,
    Hang,
    Kill,
    LeaveNoRoom,
    Pause,
    SendHalves,
    Target,
    When,
)

_ROLES = {"worker": "--workers", "ps": "--servers", "master": ""}

_CHANGES = ("servers", "workers")


_TIMES = ("step", "random", "phase")


class _Spec:
    """The text of one flag, taken apart."""

    def __init__(self, flag: str, text: str, workers: int, servers: int) -> None:
        self._flag = flag
        self._text = text
        self._count = {"worker": workers, "ps": servers, "master": 1}
        self.who, at, rest = text.partition("@")
        if not at or not rest:
            raise self.error("the time is missing: add @WHEN", self._times())
        self.values: dict[str, str] = {}
        for part in rest.split(","):
            name, _, value = part.partition("=")
            if name in self.values:
                raise self.error(f"{name} is given twice", "")
            self.values[name] = value

    def error(self, what: str, possible: str) -> UserError:
        return UserError(
            f"{self._flag} {self._text}: {what}" + (f". {possible}" if possible else "")
        )

    def _times(self) -> str:
        lasts = "" if self._flag == "--kill" else ",seconds=S"
        pointed = self._flag in ("--kill", "--hang")
        point = f", or point=NAME{lasts} with any of these or alone" if pointed else ""
        return (
            f"WHEN is step=N{lasts}, random{lasts} or phase=NAME{lasts}{point}, "
            f"as in {self._flag} {self.who or 'worker:0'}@step=200{lasts.replace('S', '3')}"
        )

    def target(self, text: str) -> Target:
        role, colon, index = text.partition(":")
        there = [
            f"{role}:0" + (f" to {role}:{count - 1}" if count > 1 else "")
            for role, count in self._count.items()
            if role != "master"
        ]
        possible = f"There are {', '.join(there)} and master"
        if text == JOB and self._flag == "--kill":
            return Target(JOB)
        if role not in _ROLES:
            raise self.error(f"{text or 'nothing'} is not a process of a job", possible)
        if role == "master":
            if colon:
                raise self.error("there is one master: write it without a number", possible)
            return Target(role)
        if not index.isdigit():
            raise self.error(f"{text} lacks the number of the {role}", possible)
        if int(index) >= self._count[role]:
            count = self._count[role]
            raise self.error(f"the job has no {text}: {_ROLES[role]} is {count}", possible)
        return Target(role, int(index))

    def when(self, target: Target | None, *further: str) -> When:
        """target: who is to come to a point; None where there is no point to come to.

        further: what else may be said.
        """
        known = {*_TIMES, *further}
        if target == Target(JOB):
            known |= {FLIP, REMOVE, *_CHANGES}
        elif target:
            known.add("point")
        if self._flag != "--kill":
            known.add("seconds")
        if unknown := self.values.keys() - known:
            raise self.error(f"{sorted(unknown)[0] or 'nothing'} is not a time", self._times())
        times = [name for name in _TIMES if name in self.values]
        if len(times) > 1:
            raise self.error(f"{times[0]} and {times[1]} are two times: remove one of them", "")
        if not times and "point" not in self.values:
            raise self.error("the time is missing", self._times())
        return When(
            step=self._step(),
            random=self._random(),
            phase=self._among("phase", PHASES, "phases"),
            point=self._among(
                "point",
                [name for name, point in POINTS.items() if target and point.role == target.role],
                f"points of a {target.role}" if target else "",
            ),
        )

    def damage(self) -> tuple[tuple[str, str], ...]:
        """The damage to do to files while the job is down."""
        return tuple(
            (verb, self._among(verb, list(FILES), "files"))
            for verb in (FLIP, REMOVE)
            if verb in self.values
        )

    def changes(self) -> tuple[tuple[str, str], ...]:
        """The changed settings with which the job is resumed."""
        changes = []
        for name in _CHANGES:
            if name in self.values:
                changes.append((name, str(self.number(name, 1))))
        return tuple(changes)

    def number(self, name: str, default: int) -> int:
        """A number from 1."""
        value = self.values.get(name, str(default))
        if not value.isdigit() or not int(value):
            raise self.error(f"{name}={value} is not a number from 1", "")
        return int(value)

    def storage_fault(self) -> tuple[str, int]:
        """The failure of storage, FAIL or HANG, and N: every N-th call has it."""
        given = [how for how in (FAIL, HANG) if how in self.values]
        if len(given) != 1:
            raise self.error(
                "the kind of failure is missing",
                "Add ,fail=N or ,hang=N: every N-th call fails, or hangs until it is over",
            )
        return given[0], self.number(given[0], 1)

    def one_of(self, roles: Sequence[str], why: str) -> Target:
        """The target of the fault, which must have one of these roles."""
        target = self.target(self.who)
        if target.role not in roles:
            raise self.error(f"{why}, not {target}", "")
        return target

    def _step(self) -> int | None:
        if "step" not in self.values:
            return None
        value = self.values["step"]
        if not value.isdigit():
            raise self.error(f"step={value} is not a number from 0", "")
        return int(value)

    def _random(self) -> bool:
        if self.values.get("random"):
            raise self.error("random takes no value; --chaos-seed says which draws", "")
        return "random" in self.values

    def _among(self, name: str, known: Sequence[str], what: str) -> str:
        if name not in self.values:
            return ""
        value = self.values[name]
        if value not in known:
            raise self.error(f"{name}={value} is not known", f"The {what}: {', '.join(known)}")
        return value

    def seconds(self, *, for_ever: bool = False) -> float:
        """The duration of the fault in seconds. for_ever: seconds=inf is allowed, too."""
        value = self.values.get("seconds")
        if value is None:
            raise self.error("the duration is missing", "Add ,seconds=S")
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < math.inf and not (for_ever and seconds == math.inf):
            raise self.error(f"seconds={value} is not a number above 0", "")
        return seconds


def parse_kill(text: str, workers: int, servers: int) -> Fault:
    """`worker:0@step=200`, `ps:1@random`, `master@point=before-journal,step=50`.

    Of all processes: `job@step=200,flip=journal,servers=3`.

    workers, servers: how many the job has. Raises UserError.
    """
    spec = _Spec("--kill", text, workers, servers)
    target = spec.target(spec.who)
    return Kill((target,), spec.when(target), damage=spec.damage(), changes=spec.changes())


def parse_pause(text: str, workers: int, servers: int) -> Fault:
    """`ps:0@step=100,seconds=5`; as `parse_kill` otherwise."""
    spec = _Spec("--pause", text, workers, servers)
    return Pause((spec.target(spec.who),), spec.when(None), spec.seconds())


def parse_fill(text: str, workers: int, servers: int) -> Fault:
    """`master@step=100,seconds=5`; as `parse_kill` otherwise."""
    spec = _Spec("--fill", text, workers, servers)
    return Fill((spec.target(spec.who),), spec.when(None), spec.seconds())


def parse_hang(text: str, workers: int, servers: int) -> Fault:
    """`worker:0@point=feeding,step=60,seconds=30`: the next time it comes to that point.

    With seconds=inf it hangs until it is killed.
    `ps:0@step=100,seconds=5`: it handles no call, and answers the pings of connections only. As
    `parse_kill` otherwise.
    """
    spec = _Spec("--hang", text, workers, servers)
    target = spec.target(spec.who)
    when = spec.when(target)
    if not when.point:
        spec.one_of(
            ("ps", "master"),
            "nobody calls a worker: it hangs at a point=NAME; calls are "
            "handled by a ps or the master",
        )
    return Hang((target,), when, spec.seconds(for_ever=bool(when.point)))


def parse_storage(text: str, workers: int, servers: int) -> Fault:
    """`data@step=100,fail=3,seconds=5`, `checkpoints@random,hang=2,seconds=5`."""
    spec = _Spec("--storage", text, workers, servers)
    if spec.who not in STORAGES:
        raise spec.error(
            f"{spec.who or 'nothing'} is not a storage", f"There are {', '.join(STORAGES)}"
        )
    when = spec.when(None, FAIL, HANG)
    how, every = spec.storage_fault()
    return DisturbStorage((Target(spec.who),), when, spec.seconds(), how=how, every=every)


def parse_half_sent(text: str, workers: int, servers: int) -> Fault:
    """`ps:0@step=100,seconds=5,count=8`; as `parse_kill` otherwise."""
    spec = _Spec("--half-sent", text, workers, servers)
    target = spec.one_of(("ps",), "requests are sent to a ps")
    when = spec.when(None, "count")
    count = spec.number("count", HALF_SENT_COUNT)
    return SendHalves((target,), when, spec.seconds(), count=count)


def parse_no_room(text: str, workers: int, servers: int) -> Fault:
    """`ps:0@step=100,seconds=20`; as `parse_kill` otherwise."""
    spec = _Spec("--no-room", text, workers, servers)
    target = spec.one_of(("worker", "ps"), "the master starts a worker or a ps")
    return LeaveNoRoom((target,), spec.when(None), spec.seconds())


def parse_cut(text: str, workers: int, servers: int) -> Fault:
    """`worker:0-ps:1@step=300,seconds=3`; as `parse_kill` otherwise."""
    spec = _Spec("--cut", text, workers, servers)
    first, dash, second = spec.who.partition("-")
    if not dash:
        raise spec.error("a cut is between two processes", "Write them with a dash: worker:0-ps:1")
    one, other = sorted((spec.target(first), spec.target(second)), key=lambda p: -_talks(p))
    if one == other or one.role == "worker" == other.role:
        raise spec.error(
            f"{one} and {other} never talk to each other",
            "Cuts are between worker:N and ps:N, worker:N and master, ps:N and master, or two ps:N",
        )
    return Cut((one, other), spec.when(None), spec.seconds())


def _talks(target: Target) -> int:
    """Higher for who calls: workers call servers, and all call the master."""
    return ("master", "ps", "worker").index(target.role)
