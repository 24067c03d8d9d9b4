"""Who may call what: the roles of each method's callers.

The one table of it. Who serves with certificates refuses every other call before a byte of its
request is read (serving.py). A test holds it against methods.py: each method is in it.
"""

from __future__ import annotations

from typing import Any

from shoal.proto import methods
from shoal.proto.identity import CLIENT, MASTER, SERVER, WORKER
from shoal.proto.methods import Method

CALLERS: dict[Method[Any, Any], frozenset[str]] = {
    method: frozenset(roles)
    for roles, called in {
        # The model.
        (WORKER,): (
            methods.REGISTER,
            methods.INITIALIZE_DENSE,
            methods.PULL,
            methods.PUSH,
            methods.READ_TABLE,
            methods.ASSIGN_ROWS,
            methods.READY,
            # The master's tasks and clocks.
            methods.REGISTER_WORKER,
            methods.GET_TASK,
            methods.REPORT_CLOCK,
            methods.JOIN_UPDATE,
            methods.OFFER_GRADIENT,
            methods.HEARTBEAT,
            methods.REPORT_TASK,
        ),
        (MASTER,): (
            methods.FENCE,
            methods.BEGIN_CHECKPOINT,
            methods.WRITE_SHARD,
            methods.DROP_CHECKPOINT,
            methods.COMPLETE_CHECKPOINT,
            methods.APPLY_UPDATE,
            methods.SET_ROUTING,
            methods.SHUTDOWN,
        ),
        (SERVER,): (
            methods.BEGIN_LOG,
            methods.APPEND_LOG,
            methods.DROP_LOG,
            methods.TAKE_LOG,
            methods.GET_RESTORE,
            methods.REPORT_PROGRESS,
            methods.REGISTER_SERVER,
            methods.WORKER_MET,
            methods.DRAIN,
        ),
        (CLIENT,): (
            methods.GET_JOB_STATUS,
            methods.STOP_JOB,
            methods.AUDIT_JOB,
            methods.SCALE_JOB,
        ),
        (SERVER, WORKER): (methods.REPORT_FAILURE,),
        # Those who look on, as `shoal chaos` does, change nothing.
        (SERVER, WORKER, CLIENT): (methods.GET_ROUTING,),
        (MASTER, CLIENT): (methods.STATUS,),
    }.items()
    for method in called
}


def permitted(method: Method[Any, Any], role: str) -> bool:
    """Whether a process of this role may call `method`."""
    return role in CALLERS[method]
