"""`python -m shoal.ps.update_log.to_checkpoint`: a checkpoint of what dead servers' logs have.

For a job that is to be resumed, whose servers kept their logs in files. Owns the making
of the shards: an older checkpoint, if there is one, with the logs' pushes done again, one
server after the other. The manifest of the whole, and whether the job goes on from it, are
the master's, which is told on standard output, as JSON: "replayed" pushes, "why" if a log
could not be read to its end, "journal", how far that was by the logs, and "shards" as
`write_shard` returns them; none if nothing is to be gained.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.base import log
from shoal.base.disk.job_folder import JobFolder
from shoal.checkpoints.folders import Attempt, Checkpoint, folder_name
from shoal.checkpoints.formats.manifests import CheckpointError
from shoal.config.job import JobConfig
from shoal.errors import EXIT_USER_ERROR, UserError, without_secrets
from shoal.files.storage import Storage, open_storage
from shoal.proto import shoal_pb2 as pb
from shoal.proto.memory import keep_freed_memory
from shoal.proto.values.positions import Seen
from shoal.proto.values.routing import Routing
from shoal.ps import moved_rows
from shoal.ps.model.pushes import PushRegister
from shoal.ps.model.tables import ServerModel
from shoal.ps.saved.checkpoint import cut, write_empty_shards, write_shard
from shoal.ps.saved.progress import Progress
from shoal.ps.saved.restoring import restore
from shoal.ps.saved.saved_rows import FirstRows
from shoal.ps.update_log.file_sink import FileSink
from shoal.ps.update_log.replay import recover

if TYPE_CHECKING:
    from shoal.checkpoints.formats.schema import ShardEntry


@click.command()
@click.option("--config", required=True, type=click.Path(path_type=Path), help="The job.json.")
@click.option("--base", required=True, type=int, help="Checkpoint to start from; 0: none.")
@click.option("--number", required=True, type=int, help="Of the checkpoint to be made.")
@click.option("--nonce", required=True, help="Of the attempt to make it.")
def main(config: Path, base: int, number: int, nonce: str) -> None:
    """Write the shards of checkpoint NUMBER: checkpoint BASE and the logs after it.

    Standard input has the servers' routing table, as it travels.
    """
    try:
        job = JobConfig.load(config)
        log.configure("log-to-checkpoint", job.log_level, job.log_format, job=job.job_name)
        keep_freed_memory()
        logs = JobFolder(config.parent).update_log
        table = pb.RoutingTable.FromString(sys.stdin.buffer.read())
        routing = Routing.from_message(table)
        made = recovered(logs, job.checkpoint_dir, routing, base, number, nonce, job.first_rows)
    except (UserError, CheckpointError, OSError) as error:
        click.echo(f"Error: {without_secrets(str(error))}", err=True)
        sys.exit(EXIT_USER_ERROR)
    click.echo(json.dumps(made))


def recovered(
    logs: Path,
    root: str,
    routing: Routing,
    base: int,
    number: int,
    nonce: str,
    first_rows: str = "",
) -> dict[str, object]:
    """Make the shards; returns what is to be printed. first_rows: as in `Sources`.

    Raises CheckpointError if checkpoint `base` is not good, OSError if files cannot be written.
    """
    storage, servers = open_storage(root), routing.servers
    attempt = Attempt(storage.child(folder_name(number)), number, nonce)
    shards: dict[int, ShardEntry] = {}
    replayed, why, seen = 0, [], Seen()
    for server in routing.present:
        pushes = PushRegister()
        restored = partial(_restored, storage, base, server, routing, pushes)
        sink = FileSink(logs, server, 0, sync=False)
        try:
            given = FirstRows(first_rows, server, routing, Progress(), open_storage)
            done = recover(sink, server, routing, restored, pushes, Progress(), fill=given.fill)
        finally:
            sink.close()
        replayed += done.count
        seen.note(done.seen.position)
        if done.why:
            why.append(f"ps-{server}: {done.why}")
        if done.model is not None:
            # As a server does when it registers.
            moved_rows.remove(done.model, routing.owners != server)
            at = cut(done.model, pushes)
            told = done.seen.to_json()
            shards[server] = write_shard(attempt, server, routing, done.model, at, journal=told)
            shards |= write_empty_shards(attempt, server, routing, done.model.spec, at)
    if not replayed or len(shards) < servers:
        attempt.folder.remove()
        shards = {}
    told = seen.to_json()
    made = [shards[server] for server in sorted(shards)]
    return {"replayed": replayed, "why": "; ".join(why), "shards": made, "journal": told}


def _restored(
    storage: Storage,
    base: int,
    server: int,
    routing: Routing,
    pushes: PushRegister,
    dense: int | None,
) -> ServerModel | None:
    """The shard of checkpoint `base`; None for 0."""
    if not base:
        return None
    checkpoint = Checkpoint(storage, base)
    return restore(checkpoint, server, routing, pushes, Progress(), dense=dense)


if __name__ == "__main__":
    main()
