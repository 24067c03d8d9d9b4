"""The logged updates after the newest checkpoint, recovered when a job is resumed.

Logs in files outlive a job's processes (--durability=file). Owns turning them into a checkpoint,
from which the job then goes on as from any other. Another process does the work, as it knows
what a server knows (shoal.ps.update_log.to_checkpoint). Logs in the servers' memory are gone
with the servers.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from shoal.base.disk.job_folder import JobFolder
from shoal.checkpoints import folders
from shoal.config.job import JobConfig
from shoal.files.storage import open_storage
from shoal.master.job.events import Taken
from shoal.proto import shoal_pb2 as pb
from shoal.proto.values.positions import position_of
from shoal.proto.values.routing import Routing

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FromLog:
    """The outcome of recovering a log.

    taken: the checkpoint that was made; None if none was. replayed: pushes done again for it.
    why: the log could not be used, or not to its end; "" if all of it is there. journal: how far
    the journal was, as the log has it; None if it does not say.
    """

    taken: Taken | None
    replayed: int = 0
    why: str = ""
    journal: pb.JournalPosition | None = None


def checkpoint_of_log(
    folder: JobFolder,
    before: JobConfig,
    config: JobConfig,
    base: int,
    position: dict[str, Any],
    routing: Routing,
) -> FromLog:
    """Make a checkpoint of checkpoint `base` (0: of the beginning) and the job's log.

    before: the configuration that the log was written with. config: that of the job resumed,
    with the folder of its checkpoints. position: the master's, for the manifest. routing: the
    table of the servers that wrote it. Raises OSError
    if that folder cannot be read or written.
    """
    if not before.keeps_log:
        return FromLog(None)
    if not before.log_in_files:
        return FromLog(None, why="it was in the memory of the servers, which are gone")
    if not any(folder.update_log.glob("*.log")):
        return FromLog(None, why="there is none in the job folder")
    root = open_storage(config.checkpoint_dir)
    root.make()
    number = max(folders.numbers(root), default=0) + 1
    attempt = folders.begin(root, number, config.job_id)
    module = "shoal.ps.update_log.to_checkpoint"
    command = [sys.executable, "-m", module, "--config", str(folder.config)]
    numbers = {"--base": base, "--number": number}
    command += [str(word) for pair in numbers.items() for word in pair]
    command += ["--nonce", attempt.nonce]
    table = routing.to_message().SerializeToString()
    done = subprocess.run(command, input=table, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        return FromLog(None, why="it could not be done again; see the master's log")
    from shoal.checkpoints.formats import schema  # late: it takes the start of a process a while

    made = json.loads(done.stdout)
    replayed, why = made["replayed"], made["why"]
    seen = position_of(made["journal"])
    shards = [schema.checked(shard, schema.ShardEntry) for shard in made["shards"]]
    if not shards:
        return FromLog(None, why=why, journal=seen)
    content = folders.complete(attempt, shards, position)
    logger.info("checkpoint %d has %d updates of the log; %s", number, replayed, why)
    taken = Taken(number, content["version"], content["bytes"], 0.0, attempt.nonce)
    return FromLog(taken, replayed, why, seen)
