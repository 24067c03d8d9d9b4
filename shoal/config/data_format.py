"""What the user says of files of data, where their names and first lines do not say it.

Owns the flags and what they may hold; the formats are data/'s.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.config.flags import check_values, flag, option
from shoal.errors import UserError

KINDS = ("csv", "parquet", "tfrecord", "recordio", "lines", "jsonlines")

CSV_FIELDS = ("csv_separator", "csv_columns", "csv_quotes")

FIELDS = ("data_format", *CSV_FIELDS)


@dataclass(frozen=True)
class DataFormat:
    """How files are to be read.

    kind: one of KINDS; by each file's ending where empty.
    separator: between the fields of CSV files; by the ending where empty.
    column_names: of CSV files without a header line; those of the header where empty.
    quotes: whether double quotes hold a field together.
    """

    kind: str = ""
    separator: str = ""
    column_names: tuple[str, ...] = ()
    quotes: bool = True


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
        "Meaning of double quotes in CSV files. double: they enclose a field, which may hold "
        "separators and line ends. none: they are ordinary characters.",
        "double",
        choices=("double", "none"),
    )

    @property
    def format_of_data(self) -> DataFormat:
        """What these fields say. Raises UserError naming the flag whose value cannot be used."""
        check_values(self)
        if self.data_format not in ("", "csv"):
            for name in CSV_FIELDS:
                if getattr(self, name) != type(self).__dataclass_fields__[name].default:
                    raise UserError(f"{flag(name)} is for CSV files, not for {self.data_format}")
        separator = {"tab": "\t", "\\t": "\t"}.get(self.csv_separator, self.csv_separator)
        _check_separator(separator)
        return DataFormat(
            self.data_format,
            separator,
            _names(self.csv_columns),
            # Of several characters, none could be escaped in a way that others know.
            self.csv_quotes == "double" and len(separator) <= 1,
        )


def _check_separator(separator: str) -> None:
    if separator == "t":  # what a shell leaves of \t
        raise UserError("--csv-separator: write a tab as the word tab: --csv-separator tab")
    unfit = set(separator) & set('"\r\n') or not separator.isascii()
    if unfit or any(each.isalnum() for each in separator):
        raise UserError(
            "--csv-separator must be of ASCII characters, without letters, digits, quotes and "
            f"line ends, or the word tab, not {separator!r}"
        )


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    for name in names:
        if not name:
            raise UserError(f"--csv-columns: {text!r} has an empty name")
        if names.count(name) > 1:
            raise UserError(f"--csv-columns names {name!r} twice")
    return names
