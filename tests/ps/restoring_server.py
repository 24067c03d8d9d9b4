"""A server process that restores, with a test as its master."""

import queue
import re
import time

from shoal.proto import faults, methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import rpc, serving
from shoal.proto.values.routing import Routing
from tests.ps.processes import log_of, start_server, write_job

PATIENCE = 120.0


class Restoring:
    """A server process that stops in the middle of its shard, until `go_on`.

    root: of the job's checkpoints. saved: what the job's --restore-from names.
    """

    def __init__(self, folder, patience=300.0, root="", saved="", **plan):
        self.folder = folder
        self.failed = queue.SimpleQueue()
        self.registered = queue.SimpleQueue()
        self.progress = queue.SimpleQueue()
        self.master, port = serving.serve(
            {
                methods.GET_RESTORE: lambda _: pb.RestoreReply(**({"again": True} | plan)),
                methods.REPORT_PROGRESS: self._progressed,
                methods.REGISTER_SERVER: self._registered,
                methods.REPORT_FAILURE: self._failed,
            },
            "127.0.0.1:0",
            4,
        )
        fields = {"durability": "checkpoint", "storage_patience_seconds": patience}
        fields |= {"checkpoint_dir": root, "restore_from": saved}
        write_job(folder, servers="1", **fields)
        self.gate = faults.hold(folder / "faults", "shard-restoring")
        self.log = log_of(folder, 0)
        self.process = start_server(folder, 0, port, incarnation=1)
        self.address = self._listens()
        self.connection = rpc.Connection(self.address, patience=0.0)

    def _listens(self):
        end = time.monotonic() + PATIENCE
        while not (found := re.search(r"listening on (\S+)", self.log.read_text())):
            assert time.monotonic() < end, self.log.read_text()
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)
        return found[1]

    def _progressed(self, request):
        self.progress.put(request)
        return pb.ReportProgressReply()

    def _registered(self, request):
        self.registered.put(request)
        return pb.RegisterServerReply(routing=Routing.even(1).to_message())

    def _failed(self, request):
        self.failed.put(request)
        return pb.ReportFailureReply()

    def go_on(self):
        self.gate.unlink()

    def call(self, method, request):
        return self.connection.call(method, request)

    def close(self):
        self.connection.close()
        self.process.kill()
        self.process.wait()
        self.master.stop(None).wait()
