"""The master: one process per job, which decides who does what.

Decisions are plain objects that do no I/O and are told the time. job.py is told all that
happens, and tells worker_lifecycle.py, server_lifecycle.py, assignments.py, flow.py and
checkpoints.py, which stand on membership.py, workload.py, tasks.py, evaluation.py and
others. The shell around them: runner.py executes their instructions, service.py answers
calls, launcher.py and processes.py start processes, servers.py calls the parameter servers.
"""

from shoal.proto import tls13 as _tls13  # noqa: F401 - before anything imports gRPC
