"""The handlers of a master without its process."""

from __future__ import annotations

from collections.abc import Callable

from shoal.master.calls.found_ids import FoundIds
from shoal.master.calls.slot_loads import SlotLoads
from shoal.master.calls.stacks import Stacks
from shoal.master.client_service import ClientService
from shoal.master.service import MasterService
from shoal.master.shared_job import SharedJob
from shoal.proto.channels import serving


def handlers_of(
    job: SharedJob, trouble: Callable[[], tuple[float, str]] = lambda: (0.0, "")
) -> serving.Handlers:
    """For all callers: processes of the job, and clients."""
    stacks = Stacks(job)
    service = MasterService(job, stacks=stacks)
    clients = ClientService(
        job, stacks, FoundIds(job), SlotLoads(job), lambda: "", trouble, lambda: ""
    )
    return service.handlers() | clients.handlers()
