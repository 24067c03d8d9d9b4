"""Conditions in a line: `auc>=0.78, loss<=0.4`.

Owns their syntax and when one holds. Which metrics there are is known to those who have them.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from shoal.base.words import near
from shoal.errors import UserError

FIRST = "first."
"""Before the metrics of --evaluate-first in a condition: first.auc>=0.7."""

_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}

_FORM = re.compile(r"(?P<metric>[^<>]*?[^\s<>=])\s*(?P<comparison>[<>]=?)\s*(?P<value>[^\s<>=]+)")

_PERCENT = re.compile(r"(.+)%")


@dataclass(frozen=True)
class Condition:
    """A condition of one metric. comparison: >=, <=, > or <."""

    metric: str
    comparison: str
    value: float

    def holds(self, found: float | None) -> bool:
        """True if a metric's value meets it; None and NaN never do."""
        if found is None or math.isnan(found):
            return False
        return _COMPARISONS[self.comparison](found, self.value)

    def __str__(self) -> str:
        return f"{self.metric}{self.comparison}{self.value:g}"


def conditions(text: str, flag: str, example: str) -> tuple[Condition, ...]:
    """The conditions of a line, with commas between them; none if it is empty.

    A value may be a percentage: 5% is 0.05. Raises UserError naming the flag, with an example of
    how one is written.
    """
    parts = filter(None, map(str.strip, text.split(",")))
    return tuple(_condition(each, flag, example) for each in parts)


def _condition(text: str, flag: str, example: str) -> Condition:
    found = _FORM.fullmatch(text)
    if found is None:
        raise UserError(
            f"{flag}: {text!r} is no condition: write a name, one of >=, <=, > and <, and a number,"
            f" such as {example}, with commas between several"
        )
    said = found["value"]
    percent = _PERCENT.fullmatch(said)
    try:
        value = float(percent[1]) / 100 if percent else float(said)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise UserError(f"{flag}: in {text!r}, {said!r} is no number: write for example {example}")
    return Condition(found["metric"], found["comparison"], value)


def publish_conditions(text: str) -> tuple[Condition, ...]:
    """The conditions of --publish-if. Raises UserError."""
    return conditions(text, "--publish-if", "auc>=0.78")


def is_first(condition: Condition) -> bool:
    """True if it is about the evaluation of --evaluate-first."""
    return condition.metric.startswith(FIRST)


def check_metrics(text: str, known: Collection[str]) -> None:
    """Raise UserError if --publish-if names a metric that the model does not have.

    known: the names of its metrics.
    """
    for condition in publish_conditions(text):
        name = condition.metric.removeprefix(FIRST)
        if name not in known:
            raise UserError(
                f"--publish-if {condition}: the model has no metric {name!r}"
                f"{near(name, list(known))}; its metrics are {', '.join(sorted(known))}"
            )


def unmet(
    text: str,
    last: Mapping[str, float | None] | None,
    first: Mapping[str, float | None] | None,
) -> list[str]:
    """A sentence for each condition of --publish-if that does not hold; none if all do.

    last: the metrics of the newest evaluation; first: those of --evaluate-first. None where there
    was no such evaluation: of the first, because there was no earlier model or no new record, and
    then its conditions ask for nothing.
    """
    said = []
    for condition in publish_conditions(text):
        if is_first(condition) and first is None:
            continue
        metrics = (first if is_first(condition) else last) or {}
        found = metrics.get(condition.metric.removeprefix(FIRST))
        if not condition.holds(found):
            what = "no number" if found is None or math.isnan(found) else f"{found:.6g}"
            said.append(f"--publish-if {condition}: {condition.metric} is {what}")
    return said
