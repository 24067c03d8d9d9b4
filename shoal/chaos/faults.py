"""Faults: what is to be done to which process of a job, and when. No I/O.

Owns the language of --kill, --pause, --cut and --fill, and drawing what is random.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.chaos.damage import FILES, FLIP, REMOVE
from shoal.errors import UserError
from shoal.flags import flag
from shoal.proto.faults import POINTS

PHASES = ("starting", "training", "saving", "evaluating", "exporting")
"""States of a training job, in their order."""

KILL, PAUSE, CUT, FILL = "kill", "pause", "cut", "fill"

FIRST, LAST = 0.02, 0.95
"""The part of a job's steps in which what is random happens."""

TOGETHER = 0.25
"""The share of random kills that come at the same moment as the one before."""

JOB = "job"
"""In place of a process: all of them at once, the client too. The job is then resumed."""

_ROLES = {"worker": "--num-workers", "ps": "--num-ps", "master": ""}


@dataclass(frozen=True, order=True)
class Party:
    """A process of a job, or all of them. role: worker, ps, master or job."""

    role: str
    index: int = 0

    def __str__(self) -> str:
        return self.role if self.role in ("master", JOB) else f"{self.role}:{self.index}"

    @property
    def process(self) -> str:
        """Its name elsewhere: worker-0."""
        return f"{self.role}-{self.index}"


@dataclass(frozen=True)
class When:
    """When a fault is due; with none of the first four, at once.

    step: model version (pushes per server; with --sync, updates). random: at a step that is
    to be drawn. fraction: of the job's steps, drawn. phase: one of `PHASES`.
    point: of `POINTS`, that is to be come to from then on; "" for none.
    """

    step: int | None = None
    random: bool = False
    fraction: float | None = None
    phase: str = ""
    point: str = ""

    def __str__(self) -> str:
        parts = [f"step={self.step}"] * (self.step is not None)
        parts += ["random"] * self.random
        parts += [f"{self.fraction:.0%} of the steps"] * (self.fraction is not None)
        parts += [f"phase={self.phase}"] * bool(self.phase)
        parts += [f"point={self.point}"] * bool(self.point)
        return ",".join(parts)


@dataclass(frozen=True)
class Fault:
    """One thing to be done. parties: one, or the two ends of a cut. seconds: it lasts.

    Of the job, while all its processes are down: damage, (flip or remove, what of
    damage.FILES) each; changes, (field, value) of the configuration to resume with.
    """

    kind: str
    parties: tuple[Party, ...]
    when: When
    seconds: float = 0.0
    damage: tuple[tuple[str, str], ...] = ()
    changes: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        lasts = f" for {self.seconds:g} s" if self.seconds else ""
        down = [f"{verb} {what}" for verb, what in self.damage]
        down += [f"{flag(name)} {value}" for name, value in self.changes]
        return ", ".join([f"{self.kind} {'-'.join(map(str, self.parties))}{lasts}", *down])


_CHANGES = ("num-ps", "num-workers")


class _Spec:
    """The text of one flag, taken apart."""

    def __init__(self, flag: str, text: str, workers: int, servers: int) -> None:
        self._flag = flag
        self._text = text
        self._count = {"worker": workers, "ps": servers, "master": 1}
        self.who, at, rest = text.partition("@")
        if not at or not rest:
            raise self.error("it does not say when: add @WHEN", self._times())
        self.values: dict[str, str] = {}
        for part in rest.split(","):
            name, _, value = part.partition("=")
            if name in self.values:
                raise self.error(f"{name} stands there twice", "")
            self.values[name] = value

    def error(self, what: str, possible: str) -> UserError:
        return UserError(
            f"{self._flag} {self._text}: {what}" + (f". {possible}" if possible else "")
        )

    def _times(self) -> str:
        lasts = "" if self._flag == "--kill" else ",seconds=S"
        point = ", or point=NAME with any of these or alone" if self._flag == "--kill" else ""
        return (
            f"WHEN is step=N{lasts}, random{lasts} or phase=NAME{lasts}{point}, "
            f"as in {self._flag} {self.who or 'worker:0'}@step=200{lasts.replace('S', '3')}"
        )

    def party(self, text: str) -> Party:
        role, colon, index = text.partition(":")
        there = [
            f"{role}:0" + (f" to {role}:{count - 1}" if count > 1 else "")
            for role, count in self._count.items()
            if role != "master"
        ]
        possible = f"There are {', '.join(there)} and master"
        if text == JOB and self._flag == "--kill":
            return Party(JOB)
        if role not in _ROLES:
            raise self.error(f"{text or 'nothing'} is no process of a job", possible)
        if role == "master":
            if colon:
                raise self.error("there is one master, without a number", possible)
            return Party(role)
        if not index.isdigit():
            raise self.error(f"{text} does not say which {role}", possible)
        if int(index) >= self._count[role]:
            count = self._count[role]
            raise self.error(f"the job has no {text}: {_ROLES[role]} is {count}", possible)
        return Party(role, int(index))

    def when(self, party: Party | None) -> When:
        """party: who is to come to a point; None where there is no point to come to."""
        known = {"step", "random", "phase"}
        if party == Party(JOB):
            known |= {FLIP, REMOVE, *_CHANGES}
        else:
            known.add("point" if party else "seconds")
        if unknown := self.values.keys() - known:
            raise self.error(f"{sorted(unknown)[0] or 'nothing'} is no time", self._times())
        times = [name for name in ("step", "random", "phase") if name in self.values]
        if len(times) > 1:
            raise self.error(f"{times[0]} and {times[1]} are two times: leave one out", "")
        if not times and "point" not in self.values:
            raise self.error("it does not say when", self._times())
        return When(
            step=self._step(),
            random=self._random(),
            phase=self._among("phase", PHASES, "phases"),
            point=self._among(
                "point",
                [name for name, point in POINTS.items() if party and point.role == party.role],
                f"points of a {party.role}" if party else "",
            ),
        )

    def damage(self) -> tuple[tuple[str, str], ...]:
        """What is to be done to files while the job is down."""
        return tuple(
            (verb, self._among(verb, list(FILES), "files"))
            for verb in (FLIP, REMOVE)
            if verb in self.values
        )

    def changes(self) -> tuple[tuple[str, int], ...]:
        """What the job is to be resumed with."""
        changes = []
        for name in _CHANGES:
            if (value := self.values.get(name)) is not None:
                if not value.isdigit() or not int(value):
                    raise self.error(f"{name}={value} is not a number from 1", "")
                changes.append((name.replace("-", "_"), int(value)))
        return tuple(changes)

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

    def seconds(self) -> float:
        value = self.values.get("seconds")
        if value is None:
            raise self.error("it does not say for how long", "Add ,seconds=S")
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < float("inf"):
            raise self.error(f"seconds={value} is not a number above 0", "")
        return seconds


def parse_kill(text: str, workers: int, servers: int) -> Fault:
    """`worker:0@step=200`, `ps:1@random`, `master@point=before-journal,step=50`.

    Of all processes: `job@step=200,flip=journal,num-ps=3`.

    workers, servers: how many the job has. Raises UserError.
    """
    spec = _Spec("--kill", text, workers, servers)
    party = spec.party(spec.who)
    return Fault(KILL, (party,), spec.when(party), damage=spec.damage(), changes=spec.changes())


def parse_pause(text: str, workers: int, servers: int) -> Fault:
    """`ps:0@step=100,seconds=5`; as `parse_kill` otherwise."""
    spec = _Spec("--pause", text, workers, servers)
    return Fault(PAUSE, (spec.party(spec.who),), spec.when(None), spec.seconds())


def parse_fill(text: str, workers: int, servers: int) -> Fault:
    """`master@step=100,seconds=5`; as `parse_kill` otherwise."""
    spec = _Spec("--fill", text, workers, servers)
    return Fault(FILL, (spec.party(spec.who),), spec.when(None), spec.seconds())


def parse_cut(text: str, workers: int, servers: int) -> Fault:
    """`worker:0-ps:1@step=300,seconds=3`; as `parse_kill` otherwise."""
    spec = _Spec("--cut", text, workers, servers)
    first, dash, second = spec.who.partition("-")
    if not dash:
        raise spec.error("a cut is between two", "Write them with a dash: worker:0-ps:1")
    one, other = sorted((spec.party(first), spec.party(second)), key=lambda p: -_talks(p))
    if one == other or one.role == "worker" == other.role:
        raise spec.error(
            f"{one} and {other} never talk to each other",
            "Cuts are between worker:N and ps:N, worker:N and master, ps:N and master, or two ps:N",
        )
    return Fault(CUT, (one, other), spec.when(None), spec.seconds())


def _talks(party: Party) -> int:
    """Higher for who calls: workers call servers, and all call the master."""
    return ("master", "ps", "worker").index(party.role)


def random_kills(count: int, seed: int, workers: int, servers: int) -> list[Fault]:
    """Kills at random moments; each role is as likely as the others.

    Some come at the same moment as the one before and meet another process.
    """
    draw = random.Random(f"kills {seed}")
    faults: list[Fault] = []
    for moment in sorted(draw.uniform(FIRST, LAST) for _ in range(count)):
        when = When(fraction=moment)
        party = _draw_party(draw, workers, servers)
        if faults and draw.random() < TOGETHER:
            when = faults[-1].when
            while party == faults[-1].parties[0]:
                party = _draw_party(draw, workers, servers)
        faults.append(Fault(KILL, (party,), when))
    return faults


def _draw_party(draw: random.Random, workers: int, servers: int) -> Party:
    role = draw.choice(("worker", "ps", "master"))
    count = {"worker": workers, "ps": servers, "master": 1}[role]
    return Party(role, draw.randrange(count))


def drawn(faults: Sequence[Fault], seed: int) -> list[Fault]:
    """The faults, with a moment for each that is to be at random."""
    draw = random.Random(f"moments {seed}")
    return [
        replace(fault, when=replace(fault.when, random=False, fraction=draw.uniform(FIRST, LAST)))
        if fault.when.random
        else fault
        for fault in faults
    ]
