"""The initializers of a new row's values.

Owns the names, parameters and JSON form of initializers; the drawing itself, a pure
function of (seed, id, column), is in initial.h. Schemes that scale by fan-in and
fan-out are resolved to one of these kinds by ``variance_scaling``, since a table has
no fan of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

KINDS: Mapping[str, Mapping[str, float]] = {
    "zeros": {},
    "constant": {"value": 0.0},
    "uniform": {"minval": -0.05, "maxval": 0.05},
    "normal": {"mean": 0.0, "stddev": 0.05},
    "truncated_normal": {"mean": 0.0, "stddev": 0.05},
}
"""Every kind with its parameters and Keras's defaults. ``truncated_normal`` stays
within two standard deviations, as in Keras."""

SCHEMES: Mapping[str, tuple[float, str, str]] = {
    "glorot_uniform": (1.0, "fan_avg", "uniform"),
    "glorot_normal": (1.0, "fan_avg", "truncated_normal"),
    "he_uniform": (2.0, "fan_in", "uniform"),
    "he_normal": (2.0, "fan_in", "truncated_normal"),
    "lecun_uniform": (1.0, "fan_in", "uniform"),
    "lecun_normal": (1.0, "fan_in", "truncated_normal"),
}
"""Scale, mode and distribution of Keras's variance-scaling initializers."""

# Standard deviation of a standard normal cut at two, as Keras corrects for it.
_TRUNCATED_STDDEV = 0.87962566103423978


@dataclass(frozen=True)
class InitializerSpec:
    """An initializer as the servers run it.

    ``parameters`` is completed with Keras's defaults. Raises ValueError for an unknown
    kind or parameter, or a value out of its range. ``given``: ids have rows from the beginning
    in the job's first rows, and are drawn only where they have none there.
    """

    kind: str
    parameters: Mapping[str, float] = field(default_factory=dict)
    given: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown initializer kind {self.kind!r}; known: {', '.join(KINDS)}")
        values = dict(KINDS[self.kind])
        unknown = sorted(set(self.parameters) - set(values))
        if unknown:
            raise ValueError(f"initializer {self.kind!r} has no parameter {', '.join(unknown)}")
        for name, value in self.parameters.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ValueError(f"initializer {self.kind!r}: {name} must be a number: {value!r}")
            if not math.isfinite(value):
                raise ValueError(f"initializer {self.kind!r}: {name} must be finite: {value!r}")
            values[name] = float(value)
        if self.kind == "uniform" and values["minval"] > values["maxval"]:
            raise ValueError(f"initializer 'uniform': minval is above maxval: {values}")
        if values.get("stddev", 0.0) < 0:
            raise ValueError(f"initializer {self.kind!r}: stddev must be at least 0: {values}")
        object.__setattr__(self, "parameters", values)

    def __hash__(self) -> int:
        return hash(self.to_json())

    @property
    def default_value(self) -> float:
        """The expected value of every column: what unseen ids read in evaluation and export."""
        p = self.parameters
        if self.kind == "uniform":
            return (p["minval"] + p["maxval"]) / 2
        return p.get("value", p.get("mean", 0.0))

    @property
    def kernel(self) -> tuple[str, float, float]:
        """The kind as initial.h names it, and the two parameters that it reads."""
        a, b = (*self.parameters.values(), 0.0, 0.0)[:2]
        return "constant" if self.kind == "zeros" else self.kind, a, b

    def to_json(self) -> str:
        """One line of JSON with sorted keys."""
        data = {"kind": self.kind, "parameters": dict(self.parameters)}
        return json.dumps(data | ({"given": True} if self.given else {}), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> InitializerSpec:
        """Read what ``to_json`` wrote; raises ValueError if it is something else."""
        data = json.loads(text)
        if not isinstance(data, dict) or set(data) - {"given"} != {"kind", "parameters"}:
            raise ValueError(f"not an initializer specification: {text[:100]!r}")
        if not isinstance(given := data.get("given", False), bool):
            raise ValueError(f"not an initializer specification: {text[:100]!r}")
        return cls(data["kind"], data["parameters"], given)


def variance_scaling(
    fan_in: float,
    fan_out: float,
    *,
    scale: float = 1.0,
    mode: str = "fan_in",
    distribution: str = "truncated_normal",
) -> InitializerSpec:
    """Resolve Keras's VarianceScaling (glorot, he, lecun: see ``SCHEMES``) to a kind.

    ``distribution``: truncated_normal, untruncated_normal or uniform. For a table, Keras
    takes fan_in = vocabulary size and fan_out = dim. Raises ValueError for an unknown
    mode or distribution, or a fan or scale that is not above 0.
    """
    fans = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}
    if mode not in fans:
        raise ValueError(f"unknown mode {mode!r}; known: {', '.join(fans)}")
    if scale <= 0 or min(fan_in, fan_out) <= 0:
        raise ValueError(f"scale and fans must be above 0: {scale}, {fan_in}, {fan_out}")
    variance = scale / max(1.0, fans[mode])
    if distribution == "uniform":
        limit = math.sqrt(3 * variance)
        return InitializerSpec("uniform", {"minval": -limit, "maxval": limit})
    if distribution == "truncated_normal":
        stddev = math.sqrt(variance) / _TRUNCATED_STDDEV
        return InitializerSpec("truncated_normal", {"stddev": stddev})
    if distribution == "untruncated_normal":
        return InitializerSpec("normal", {"stddev": math.sqrt(variance)})
    raise ValueError(f"unknown distribution {distribution!r}")
