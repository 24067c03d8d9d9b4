"""The master: one process per job, which decides who does what.

Decisions are plain objects that do no I/O and are told the time: work/ (the tasks and the ledger)
and job/ (phases, leases, members), where job/job.py is told of all events. journal/ keeps these
events. Around them is the shell: runner.py executes the instructions of a job, service.py answers
calls, launchers/ start processes or pods, servers.py calls the parameter servers. cluster/ is for
a master that is a pod.
"""

from shoal.proto import tls13 as _tls13  # noqa: F401 - before anything imports gRPC
