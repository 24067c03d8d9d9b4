"""Options of one table: arguments of shoal.layers.Embedding, and --table NAME.OPTION=VALUE.

Owns which options there are, with what each may be, and their form as text, which the
configuration keeps. Another option is another entry of OPTIONS, a field of pb.TableSpec of its
name, and an argument of the layer. Which table gets which is
worker/model/embeddings/table_options.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.base.words import near
from shoal.config.spans import FORM, seconds_of, span_of
from shoal.errors import UserError

FLAG = "--table"

NO_EVENT_TIME = "nothing tells the time of a record, by which rows expire: add --event-time COLUMN"
"""Of a job with a table that has expire_after."""

MAX_ADMIT_AFTER = 2_047
"""As native/rowstore.pyx has it."""


@dataclass(frozen=True)
class TableOption:
    """An option of a table.

    default: what a table has that is not given the option. parse: the value in a text; raises
    ValueError. allowed: whether a value may be given. values: what it may be, in words. field: of a
    value, that of pb.TableSpec's field. text, told: of a field's value, the option's own in text,
    and its effect in words, for shoal check.
    """

    default: Any
    parse: Callable[[str], Any]
    allowed: Callable[[Any], bool]
    values: str
    told: Callable[[Any], str]
    field: Callable[[Any], Any] = lambda value: value or 0
    text: Callable[[Any], str] = str


def _is_admit_after(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MAX_ADMIT_AFTER


def _is_expire_after(value: Any) -> bool:
    try:
        return value is None or seconds_of(value) > 0
    except ValueError:
        return False


def _is_max_rows(value: Any) -> bool:
    return value is None or (type(value) is int and 0 < value < 2**62)


OPTIONS: dict[str, TableOption] = {
    "admit_after": TableOption(
        default=1,
        parse=int,
        allowed=_is_admit_after,
        values=f"an integer from 1 to {MAX_ADMIT_AFTER}",
        told=lambda value: f"an id gets a row at its push number {value}",
    ),
    "expire_after": TableOption(
        default=None,
        parse=str,
        allowed=_is_expire_after,
        values=FORM,
        told=lambda value: f"an id is removed {span_of(value)} of event time after its last push",
        field=lambda value: seconds_of(value) if value else 0,
        text=span_of,
    ),
    "max_rows": TableOption(
        default=None,
        parse=int,
        allowed=_is_max_rows,
        values="an integer above 0",
        told=lambda value: f"{value:,} rows at most; at more, those of least use are removed",
    ),
}
"""By the name that the flag, the layer's argument and the field of pb.TableSpec have."""


def checked(name: str, value: Any, what: str) -> Any:
    """The value of an option, as the argument of a layer.

    what: what was given it, for the error. Raises UserError.
    """
    if not OPTIONS[name].allowed(value):
        raise UserError(f"{what}: {name} must be {OPTIONS[name].values}, not {value!r}")
    return value


def table_options(text: str) -> dict[str, dict[str, Any]]:
    """By table, the options that --table gives it: `user.admit_after=3,item.admit_after=2`.

    A table's name may have dots. Raises UserError.
    """
    found: dict[str, dict[str, Any]] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        place, equals, value = (each.strip() for each in part.partition("="))
        table, dot, option = place.rpartition(".")
        option = option.replace("-", "_")
        if not (equals and dot and table and option):
            raise UserError(
                f"{FLAG} must be NAME.OPTION=VALUE, such as user_id.admit_after=3, not {part!r}"
            )
        if option not in OPTIONS:
            raise UserError(
                f"{FLAG} {part}: a table has no option {option}{near(option, OPTIONS)}; there "
                f"are: {', '.join(OPTIONS)}"
            )
        try:
            parsed = OPTIONS[option].parse(value)
        except ValueError:
            parsed = value  # which is not allowed either
        of_table = found.setdefault(table, {})
        if option in of_table:
            raise UserError(f"{FLAG} gives {table}.{option} twice: remove one of them")
        of_table[option] = checked(option, parsed, f"{FLAG} {part}")
    return found


def text_of(options: Mapping[str, Any]) -> str:
    """The text of {"user_id.admit_after": 3} or {"user_id": {"admit_after": 3}}."""
    pairs = []
    for name, value in options.items():
        if isinstance(value, Mapping):
            pairs += [f"{name}.{option}={each}" for option, each in value.items()]
        else:
            pairs.append(f"{name}={value}")
    return ",".join(pairs)


def fields_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of pb.TableSpec of a table with these options."""
    return {name: OPTIONS[name].field(value) for name, value in options.items()}


def told_options(table: Any) -> list[str]:
    """The options of a table that are not at their default, each in words. table: pb.TableSpec."""
    return [
        f"{name}={each.text(value)}: {each.told(value)}"
        for name, each in OPTIONS.items()
        if (value := getattr(table, name)) not in (0, each.field(each.default))
    ]
