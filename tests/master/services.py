"""The handlers of a master without its process."""

from __future__ import annotations

from collections.abc import Callable

from shoal.master.client_service import ClientService
from shoal.master.found_ids import FoundIds
from shoal.master.service import MasterService
from shoal.master.shared_job import SharedJob
from shoal.master.stacks import Stacks
from shoal.proto import serving
from shoal.proto.routing import Routing


def handlers_of(
    job: SharedJob, trouble: Callable[[], tuple[float, str]] = lambda: (0.0, "")
) -> serving.Handlers:
    """For all callers: processes of the job, and clients."""
    stacks = Stacks(job)
    routing = Routing.even(job.config.num_ps)
    service = MasterService(job, routing, stacks=stacks)
    clients = ClientService(job, stacks, FoundIds(job, routing), lambda: "", trouble, lambda: "")
    return service.handlers() | clients.handlers()
