"""Runs in a pod of the job's namespace and calls its processes as several strangers do.

Arguments: the job's name, namespace, token and id. Prints what became of each call, as JSON. The
folders below /work/identities have the files of identities.
"""

import json
import sys
from pathlib import Path

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels.rpc import Connection
from shoal.proto.errors import CallError, WireError
from shoal.proto.identity import Caller, Identity
from shoal.proto.wire.transport import peer_name

SERVER_PORT, MASTER_PORT, HEALTH_PORT = 7100, 7000, 7200


def main(name, namespace, token, job):
    def call(process, port, method, request, folder=""):
        identity = None
        if folder:
            role, _, index = folder.rpartition("-")
            caller = Caller(job, role.rpartition("-")[2], int(index))
            identity = Identity.load(Path("/work/identities", folder), caller)
        address = f"{name}-{process}.{name}.{namespace}.svc:{port}"
        role, _, index = process.partition("-")
        peer = peer_name(token, role, int(index or 0))
        connection = Connection(address, deadline=60.0, patience=0.0, peer=peer, identity=identity)
        try:
            connection.call(method, request)
        except WireError as error:
            return pb.ErrorKind.Name(error.kind)
        except CallError as error:
            return type(error).__name__
        finally:
            connection.close()
        return "answered"

    found = {}
    for who in ("", "another-worker-0", "worker-0"):
        found[who] = {
            "pull": call("ps-0", SERVER_PORT, methods.PULL, b"", who),
            "shut down": call("ps-0", SERVER_PORT, methods.SHUTDOWN, pb.ShutdownRequest(), who),
            "stop": call("master", MASTER_PORT, methods.STOP_JOB, pb.StopJobRequest(), who),
            "look": call("master", MASTER_PORT, methods.GET_ROUTING, pb.GetRoutingRequest(), who),
        }
    other = pb.GetTaskRequest(worker=1)
    found["for another"] = call("master", MASTER_PORT, methods.GET_TASK, other, "worker-0")
    found["health"] = {
        "shut down": call("ps-0", HEALTH_PORT, methods.SHUTDOWN, pb.ShutdownRequest()),
        "stop": call("master", HEALTH_PORT, methods.STOP_JOB, pb.StopJobRequest()),
    }
    print(json.dumps(found))


main(*sys.argv[1:])
