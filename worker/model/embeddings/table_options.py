"""Which options each table of a model has: by its layer, or by --table instead.

Owns the choice, and its refusal where a table cannot have an option. Which options there are is
config/table_options.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.base.words import near
from shoal.config.job import JobConfig
from shoal.config.table_options import FLAG, NO_EVENT_TIME, OPTIONS, table_options
from shoal.errors import UserError
from shoal.worker.model.built import ServedTable

LEAST_SHARE = 64
"""Of max_rows, for each server: ids are spread evenly over servers only where they are many."""


def chosen_options(tables: Mapping[str, ServedTable], text: str) -> dict[str, dict[str, Any]]:
    """The options of each table, by its name: all of OPTIONS.

    tables: by name. text: of --table. Raises UserError for a table
    that there is not, and for an option that a table cannot have.
    """
    given = table_options(text)
    for name in given:
        if name not in tables:
            there = f"its tables are {', '.join(tables)}" if tables else "it has none"
            raise UserError(
                f"{FLAG} names the table {name!r}{near(name, tables, most=1)}, which the model "
                f"does not have: {there}"
            )
    return {name: _chosen(table, given.get(name, {})) for name, table in tables.items()}


def _chosen(table: ServedTable, given: Mapping[str, Any]) -> dict[str, Any]:
    options = {
        option: given.get(option, table.options.get(option, each.default))
        for option, each in OPTIONS.items()
    }
    for option, each in OPTIONS.items():
        if options[option] != each.default and table.whole:
            raise UserError(
                f"table {table.name!r} has {option}={options[option]}, but its rows are given by "
                f"the model's code, so all of them are there from the beginning: remove {option}"
            )
    return options


def check_lifecycle(
    tables: Mapping[str, ServedTable], options: Mapping[str, Mapping[str, Any]], config: JobConfig
) -> None:
    """Check that a job can train tables with these options, as `chosen_options` gives them.

    Raises UserError.
    """
    servers = config.num_servers
    for name, of_table in options.items():
        for option in ("expire_after", "max_rows"):
            if of_table[option] and tables[name].frozen:
                raise UserError(
                    f"table {name!r} has {option}={of_table[option]}, but it is not trained, so no "
                    f"push tells which of its rows are in use: remove {option}"
                )
        if (span := of_table["expire_after"]) and not config.event_time:
            raise UserError(f"table {name!r} has expire_after={span}, but {NO_EVENT_TIME}")
        most = of_table["max_rows"]
        if most and most // servers < LEAST_SHARE:
            raise UserError(
                f"table {name!r} has max_rows={most}, which leaves {most // servers} rows to "
                f"each of --servers {servers}; a server needs {LEAST_SHARE} at least: set "
                f"max_rows to {LEAST_SHARE * servers} or more, or use fewer servers"
            )
