"""A server that is told to end asks its master for a checkpoint, for as long as it may."""

import pytest

from shoal.proto import methods
from shoal.proto import shoal_pb2 as pb
from shoal.proto.channels import serving
from shoal.proto.errors import WireError
from shoal.ps.drain import SPARE_SECONDS, drain


@pytest.mark.parametrize(("ready", "grace"), [(True, 60.0), (False, SPARE_SECONDS)])
def test_a_master_that_is_not_ready_is_asked_again_until_the_time_is_up(
    cluster, connect, ready, grace
):
    asked = []

    def answer(request):
        asked.append(request.server)
        if len(asked) < 3 or not ready:
            raise WireError(pb.NOT_READY, "the journal cannot be written")
        return pb.DrainReply(outcome="all is in checkpoint 3")

    [server] = cluster(1).servers
    master, port = serving.serve({methods.DRAIN: answer}, "127.0.0.1:0", threads=2)
    connection = connect(f"127.0.0.1:{port}", patience=0.0)
    drain(server, pb.DrainRequest(server=0, incarnation=1), connection, grace)
    assert asked == [0] * (3 if ready else 1)
    master.stop(None).wait()
