"""Which options each table of a model has: by its layer, or by --table instead.

Owns the choice, and its refusal where a table cannot have an option. Which options there are is
config/table_options.py's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.base.words import near
from shoal.config.table_options import FLAG, OPTIONS, table_options
from shoal.errors import UserError
from shoal.worker.model.initial_rows import gives_rows


def chosen_options(tables: Mapping[str, Any], text: str) -> dict[str, dict[str, Any]]:
    """The options of each table, by its name: all of OPTIONS.

    tables: the embedding layer of each, by name. text: of --table. Raises UserError for a table
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
    return {name: _chosen(name, layer, given.get(name, {})) for name, layer in tables.items()}


def _chosen(name: str, layer: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    options = {
        option: given.get(option, getattr(layer, option, each.default))
        for option, each in OPTIONS.items()
    }
    if options["admit_after"] > 1 and gives_rows(layer):
        raise UserError(
            f"table {name!r} has admit_after={options['admit_after']}, but its rows are given by "
            "the model's code, so all of them are there from the beginning: remove admit_after"
        )
    return options
