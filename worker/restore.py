"""From what was saved back to the servers: the LOAD task.

What `--restore-from` names, and reading it, is shoal.checkpoints.saved's.
"""

from __future__ import annotations

from shoal.checkpoints.saved import Export, SavedCheckpoint
from shoal.worker.model.model import ServedModel
from shoal.worker.servers.group import ServerGroup


def load_tables(saved: Export | SavedCheckpoint, model: ServedModel, servers: ServerGroup) -> None:
    """Fill the servers' tables. Raises UserError if tables do not fit the model.

    May be done again: a server that was started again meanwhile has filled its own.
    """
    for position, (name, layer) in enumerate(model.tables.items()):
        for ids, rows in saved.rows(name, layer.output_dim):
            servers.assign_rows(position, ids, rows)
