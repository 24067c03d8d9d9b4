"""The URL of a topic: `kafka://HOST:PORT[,HOST:PORT]/TOPIC?start=...&format=...`.

Owns what may stand in it, and the words for what may not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, unquote

import pyarrow as pa

from shoal.base.words import near_or_all
from shoal.config.url_variables import fill
from shoal.errors import UserError, without_credentials

SCHEME = "kafka://"

ROWS = 16_384
"""Most records of a segment, unless the URL says otherwise."""

LINGER_SECONDS = 1.0

FORMATS = ("json", "csv", "example", "arrow")

EARLIEST, LATEST, COMMITTED = "earliest", "latest", "committed"

KEYS = (
    *("start", "format", "rows", "linger", "group", "gaps"),
    *("columns", "separator", "types"),
)
"""Of a URL, beside those of librdkafka that say how brokers are reached."""

PASSED = ("security.protocol", "sasl.", "ssl.", "client.id", "broker.address.family")
"""Beginnings of the options that are librdkafka's own."""

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_BROKER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/@?#,\[\]]+):(\d{1,5})")


@dataclass(frozen=True)
class KafkaPlace:
    """A topic, and the way in which it is read.

    name: URL without options and credentials, for errors. start: "earliest", "latest", "committed",
    or a time in milliseconds since 1970. rows: most records of a segment. linger: seconds after
    which one may have fewer. group: whose offsets are committed. counts_gaps: offsets may be
    missing. columns, separator: of CSV. types: of columns that are not guessed. client: options of
    librdkafka, with the values of variables.
    """

    name: str
    brokers: str
    topic: str
    start: str | int = EARLIEST
    format: str = "json"
    rows: int = ROWS
    linger: float = LINGER_SECONDS
    group: str = "shoal"
    counts_gaps: bool = False
    columns: tuple[str, ...] = ()
    separator: str = ","
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    client: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, url: str, flag: str) -> KafkaPlace:
        """The place that a URL names. Raises UserError that begins with the flag."""
        shown = without_credentials(url)
        # Values of variables may hold any character, and are quoted until the query is cut.
        filled = fill(url, flag, quoted=True).url
        where, _, query = filled.removeprefix(SCHEME).partition("?")
        brokers, _, topic = where.partition("/")
        form = "kafka://HOST:PORT[,HOST:PORT]/TOPIC?KEY=VALUE&..."
        wrong = [each for each in brokers.split(",") if not _BROKER.fullmatch(each)]
        if "@" in brokers:
            raise UserError(
                f"{flag}: {shown}: user and password do not stand before the host: give "
                "&sasl.username=NAME&sasl.password=${VARIABLE}"
            )
        if wrong:
            raise UserError(f"{flag}: {shown}: {wrong[0]!r} is no broker: write it as {form}")
        topic = unquote(topic)
        if not _TOPIC.fullmatch(topic):
            raise UserError(f"{flag}: {shown}: {topic!r} is no name of a topic: write it as {form}")
        if "#" in query:
            raise UserError(f"{flag}: {shown}: options of a topic stand behind ?, not behind #")
        name = f"{SCHEME}{brokers}/{topic}"
        return cls(name, brokers, topic, **_options(query, f"{flag}: {name}"))


def _options(query: str, where: str) -> dict[str, Any]:
    """The fields of KafkaPlace that a query tells. Raises UserError that begins with `where`."""
    given: dict[str, str] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key in given:
            raise UserError(f"{where}: {key} is given twice")
        if key not in KEYS and not key.startswith(PASSED):
            raise UserError(f"{where}: there is no option {key!r}{near_or_all(key, KEYS)}")
        if key.endswith(".pem"):
            raise UserError(
                f"{where}: {key}: give the path of a file: {key.replace('.pem', '.location')}"
            )
        if not value:
            raise UserError(f"{where}: {key} has no value")
        given[key] = value
    found: dict[str, Any] = {
        "client": {key: value for key, value in given.items() if key not in KEYS}
    }
    if "start" in given:
        found["start"] = _start(given["start"], where)
    if (kind := given.get("format", "json")) not in FORMATS:
        raise UserError(f"{where}: there is no format {kind!r}{near_or_all(kind, FORMATS)}")
    found["format"] = kind
    if "rows" in given:
        found["rows"] = int(_number("rows", given["rows"], where, 1, whole=True))
    if "linger" in given:
        found["linger"] = _number("linger", given["linger"], where, 0)
    if "gaps" in given:
        if given["gaps"] != "count":
            raise UserError(f"{where}: gaps must be count, not {given['gaps']!r}")
        found["counts_gaps"] = True
    if "group" in given:
        found["group"] = given["group"]
    elif found.get("start") == COMMITTED:
        raise UserError(f"{where}: start=committed needs &group=NAME, whose offsets are meant")
    return found | _columns(given, kind, where)


def _columns(given: Mapping[str, str], kind: str, where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in ("columns", "separator"):
        if key in given and kind != "csv":
            raise UserError(f"{where}: {key} is for format=csv, not for {kind}")
    if kind == "csv":
        names = tuple(each.strip() for each in given.get("columns", "").split(",") if each.strip())
        if not names:
            raise UserError(
                f"{where}: messages of CSV have no header line: give &columns=NAME,NAME,..."
            )
        if len(set(names)) < len(names):
            raise UserError(f"{where}: columns names a column twice")
        found["columns"] = names
        separator = given.get("separator", ",")
        found["separator"] = "\t" if separator == "tab" else separator
    if "types" in given:
        if kind not in ("json", "csv"):
            raise UserError(f"{where}: types is for format=json and csv: {kind} tells its own")
        found["types"] = dict(_type(each, where) for each in given["types"].split(","))
    return found


def _type(text: str, where: str) -> tuple[str, pa.DataType]:
    name, _, kind = (each.strip() for each in text.partition(":"))
    inner = re.fullmatch(r"list<(.+)>", kind)
    try:
        made = pa.type_for_alias(inner[1] if inner else kind)
    except ValueError as error:
        raise UserError(
            f"{where}: types: {text!r} must be NAME:TYPE, with a type of Arrow such as int64, "
            "double, string, bool or list<int64>"
        ) from error
    return name, pa.list_(made) if inner else made


def _start(text: str, where: str) -> str | int:
    if text in (EARLIEST, LATEST, COMMITTED):
        return text
    try:
        time = datetime.fromisoformat(text.replace(" ", "+"))  # which a query means by one
    except ValueError as error:
        raise UserError(
            f"{where}: start must be earliest, latest, committed or a time such as "
            f"2026-01-31T08:00:00Z, not {text!r}"
        ) from error
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    return int(time.timestamp() * 1000)


def _number(key: str, text: str, where: str, least: float, *, whole: bool = False) -> float:
    try:
        number = float(int(text) if whole else float(text))
    except ValueError:
        number = float("nan")
    if not least <= number < float("inf"):
        kind = "whole number" if whole else "number of seconds"
        raise UserError(f"{where}: {key} must be a {kind} from {least:g} on, not {text!r}")
    return number
