"""The master: one process per job, which decides who does what.

Decisions are plain objects that do no I/O and are told the time: work.py, tasks.py,
evaluation.py, membership.py, supervisor.py, joined by job.py. The shell around
them: runner.py executes their instructions, service.py answers calls, launcher.py
and processes.py start processes, servers.py calls the parameter servers.
"""
