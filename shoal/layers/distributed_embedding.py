"""`DistributedEmbedding`: that of keras-rs, with tables that only parameter servers can hold.

Owns what it adds to keras-rs's: the placement on servers, and tables of any id. How the worker
takes the tables of either layer to the servers is worker/model/embeddings/keras_rs_tables.py's.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import keras_rs

from shoal.errors import UserError
from shoal.layers.embedding import lookup_for

PLACEMENT = "parameter_server"

_ANY_ID = 2**63 - 1
"""The vocabulary that keras-rs is told of a table of any id: it wants a number."""


@keras.saving.register_keras_serializable(package="shoal")
class DistributedEmbedding(keras_rs.layers.DistributedEmbedding):
    """keras_rs.layers.DistributedEmbedding, whose tables may be held by the parameter servers.

    feature_configs: as keras-rs takes them, a nested structure of its FeatureConfig. The
        TableConfig of a feature may have placement="parameter_server"; with that placement, or
        "auto", also vocabulary_size=None, so that the table takes any int64 id.

    Such a table has no weight in the process: outside a shoal job the layer raises RuntimeError
    when it is built. Other tables are as in keras-rs. In a job, the servers hold all tables.

    Raises UserError for a placement that no parameter server has.
    """

    def __init__(self, feature_configs: Any, **kwargs: Any) -> None:
        # Features that share a table go on sharing it: keras-rs knows it by the object.
        tables: dict[int, Any] = {}
        any_id: list[str] = []

        def placed(feature: Any) -> Any:
            table = _checked(feature)
            if not _on_servers(table):
                return feature
            if id(table) not in tables:
                size = table.vocabulary_size
                if size is None:
                    size = _ANY_ID
                    any_id.append(table.name)
                tables[id(table)] = dataclasses.replace(
                    table, placement="default_device", vocabulary_size=size
                )
            return dataclasses.replace(feature, table=tables[id(table)])

        super().__init__(keras.tree.map_structure(placed, feature_configs), **kwargs)
        self._on_servers = tuple(table.name for table in tables.values())
        self.any_id = tuple(any_id)
        """Names of the tables of any id."""

    def build(self, input_shapes: Any) -> None:
        """Build as keras-rs does. Raises RuntimeError for a table on servers outside a job."""
        if self._on_servers and not self.built:
            lookup_for(self)
        super().build(input_shapes)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config: dict[str, Any] = super().get_config()
        for table in config["tables"]:
            if table["name"] in self._on_servers:
                table["placement"] = PLACEMENT
            if table["name"] in self.any_id:
                table["vocabulary_size"] = None
        return config


def _on_servers(table: Any) -> bool:
    return bool(table.placement == PLACEMENT or table.vocabulary_size is None)


def _checked(feature: Any) -> Any:
    """The table of a feature. Raises UserError for one that servers cannot hold."""
    if not isinstance(feature, keras_rs.layers.FeatureConfig):
        raise UserError(
            "shoal.layers.DistributedEmbedding takes keras_rs.layers.FeatureConfig, not "
            f"{type(feature).__name__}"
        )
    table = feature.table
    if table.placement == "sparsecore":
        raise UserError(
            f'table {table.name!r} of feature {feature.name!r} has placement="sparsecore", which '
            f'only TPUs have: give placement="{PLACEMENT}"'
        )
    if table.vocabulary_size is None and table.placement not in (PLACEMENT, "auto"):
        raise UserError(
            f"table {table.name!r} of feature {feature.name!r} has vocabulary_size=None, any "
            f"int64 id, which only servers can hold, and placement={table.placement!r}: give "
            f'placement="{PLACEMENT}"'
        )
    return table
