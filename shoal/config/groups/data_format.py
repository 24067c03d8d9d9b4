"""The user's settings for data files, where names and first lines do not tell the format.

Owns the flags and their allowed values; the formats are data/'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shoal.config.flags import check_values, flag, option
from shoal.errors import UserError

KINDS = (
    *("csv", "parquet", "arrow", "tfrecord", "example", "sequence-example", "recordio"),
    *("lines", "jsonlines"),
)

CSV_FIELDS = ("csv_separator", "csv_columns", "csv_quotes", "csv_comment")

FIELDS = ("data_format", *CSV_FIELDS, "columns", "fill_missing", "missing_mask")

QUOTES = {"double": '"', "single": "'", "none": ""}
"""Values of --csv-quotes, and the character of each."""

IN_URL = {
    "format": "data_format",
    "separator": "csv_separator",
    "columns": "csv_columns",
    "quotes": "csv_quotes",
    "comment": "csv_comment",
}
"""What may stand behind a `#` of a path or URL, and the field that it is in place of."""


@dataclass(frozen=True)
class DataFormat:
    """Settings for reading data files.

    kind: one of KINDS; by each file's ending where empty.
    separator: between the fields of CSV files; by the ending where empty.
    column_names: of CSV files without a header line; those of the header where empty.
    quote: the character that holds a field together; "" for none. comment: the character with which
    lines begin that are no records; "" for none.
    columns: the ones to read; all where empty. fill: by column, the value that replaces missing
    ones, as text. masks: columns for which another column tells whether a value is missing.
    """

    kind: str = ""
    separator: str = ""
    column_names: tuple[str, ...] = ()
    quote: str = '"'
    comment: str = ""
    columns: tuple[str, ...] = ()
    fill: tuple[tuple[str, str], ...] = ()
    masks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FormatOptions:
    """Fields of JobConfig that say how files of data are written."""

    data_format: str = option(
        "Format of the data files. Give it if their names do not end as usual, as u.data does.",
        "",
        choices=("", *KINDS),
    )
    csv_separator: str = option(
        "Separator between the fields of CSV files, such as ';', '|', '::' or the word tab. "
        "Default: a comma, or a tab for files that end in .tsv.",
        "",
        value="SEPARATOR",
    )
    csv_columns: str = option(
        "Names of the columns, with commas between them, for CSV files without a header line.",
        "",
        value="NAMES",
    )
    csv_quotes: str = option(
        "Quotes in CSV files. double, single: these enclose a field, which may hold separators and "
        "line ends. none: quotes are ordinary characters.",
        "double",
        choices=tuple(QUOTES),
    )
    csv_comment: str = option(
        "Character with which lines of CSV files begin that are comments, such as '#'.",
        "",
        value="CHARACTER",
    )
    columns: str = option(
        "Columns to read, with commas between them. Default: those that feed or feed_batch uses, "
        "as far as that can be traced, else all.",
        "",
        value="NAMES",
    )
    fill_missing: str = option(
        "What stands for the missing values of a column. May be given several times. Of a column "
        "of lists it stands for missing elements; a missing list is empty.",
        "",
        value="COLUMN=VALUE",
        repeated=True,
    )
    missing_mask: str = option(
        "Columns, with commas between them, of which a bool column NAME_missing tells which values "
        "are missing.",
        "",
        value="NAMES",
    )

    @property
    def format_of_data(self) -> DataFormat:
        """The declared format. Raises UserError naming the flag whose value cannot be used."""
        check_values(self)
        if self.data_format not in ("", "csv"):
            for name in CSV_FIELDS:
                if getattr(self, name) != type(self).__dataclass_fields__[name].default:
                    raise UserError(f"{flag(name)} is for CSV files, not for {self.data_format}")
        separator = {"tab": "\t", "\\t": "\t"}.get(self.csv_separator, self.csv_separator)
        _check_separator(separator)
        # With a separator of several characters, none could be escaped in a way that others know.
        quote = QUOTES[self.csv_quotes] if len(separator) <= 1 else ""
        comment = self.csv_comment
        unfit = len(comment) > 1 or not comment.isascii() or not comment.isprintable()
        if comment and (unfit or comment in (separator, quote)):
            raise UserError(
                "--csv-comment must be one ASCII character, which is neither the separator nor a "
                f"quote, not {comment!r}"
            )
        return DataFormat(
            self.data_format,
            separator,
            _names(self.csv_columns, "--csv-columns"),
            quote,
            comment,
            _names(self.columns, "--columns"),
            _fill(self.fill_missing),
            _names(self.missing_mask, "--missing-mask"),
        )


def split_options(pattern: str) -> tuple[str, dict[str, str]]:
    """A path or URL without what stands behind its `#`, and that, by the fields of FormatOptions.

    A `#` that no option follows is part of the path.
    """
    for place in (at for at, character in enumerate(pattern) if character == "#"):
        parts = [part.partition("=") for part in pattern[place + 1 :].split("&")]
        if all(equals and name in IN_URL for name, equals, _ in parts):
            return pattern[:place], {IN_URL[name]: value for name, _, value in parts}
    return pattern, {}


def with_options(data_format: DataFormat, options: dict[str, str], flag_name: str) -> DataFormat:
    """The format with these fields in place of its own. Raises UserError that names the flag."""
    if not options:
        return data_format
    try:
        given = FormatOptions(**options).format_of_data
    except UserError as error:
        raise UserError(f"{flag_name}: behind #: {error}") from error
    changes: dict[str, Any] = {}
    for field, name in (
        ("data_format", "kind"),
        ("csv_separator", "separator"),
        ("csv_columns", "column_names"),
        ("csv_quotes", "quote"),
        ("csv_comment", "comment"),
    ):
        if field in options or (field == "csv_quotes" and len(given.separator) > 1):
            changes[name] = getattr(given, name)
    return replace(data_format, **changes)


def _check_separator(separator: str) -> None:
    if separator == "t":  # what a shell leaves of \t
        raise UserError("--csv-separator: write a tab as the word tab: --csv-separator tab")
    unfit = set(separator) & set('"\r\n') or not separator.isascii()
    if unfit or any(each.isalnum() for each in separator):
        raise UserError(
            "--csv-separator must be of ASCII characters, without letters, digits, quotes and "
            f"line ends, or the word tab, not {separator!r}"
        )


def _names(text: str, name: str) -> tuple[str, ...]:
    names = tuple(each.strip() for each in text.split(",")) if text else ()
    twice = [each for each, times in Counter(names).items() if times > 1]
    if "" in names:
        raise UserError(f"{name}: {text!r} has an empty name")
    if twice:
        raise UserError(f"{name} names {twice[0]!r} twice")
    return names


def _fill(text: str) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for part in text.split(",") if text else ():
        name, equals, value = part.partition("=")
        if not name or not equals:
            raise UserError(f"--fill-missing must be COLUMN=VALUE, not {part!r}")
        if name in found:
            raise UserError(f"--fill-missing names {name!r} twice")
        found[name] = value
    return tuple(found.items())


def text_of(fill: Mapping[str, Any]) -> str:
    """The text of {"age": 0, "city": ""}. Raises UserError for a value that a text cannot have."""
    for name, value in fill.items():
        if value is None or isinstance(value, bytes) or "," in f"{name}{value}" or "=" in str(name):
            raise UserError(
                f"--fill-missing cannot be {{{name!r}: {value!r}}}: give a number, a bool, a time "
                "or a text, without commas, and a column without = in its name"
            )
    return ",".join(f"{name}={value}" for name, value in fill.items())
