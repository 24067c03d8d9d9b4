"""The master: one process per job, which decides who does what.

    work/        the work of a job: tasks, evaluations, and what became of each record
    job/         its decisions: members, numbers, moves, checkpoints
    journal/     the events that job/job.py was told, kept for a restart
    launchers/   start processes or pods
    calls/       calls of parameter servers
    figures/     metrics files, TensorBoard and other reports
    cluster/     a master that is a pod
    runner.py    executes the instructions of a job
    service.py   answers calls

work/ and job/ do no I/O and are told the time.
"""

from shoal.proto.wire import tls13 as _tls13  # noqa: F401 - before anything imports gRPC
