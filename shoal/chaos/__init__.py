"""`shoal chaos`: disturb a job on purpose and say what became of it.

faults.py: what may be asked for, and reading it from text. schedule.py: what is due when.
watcher.py: looks at the job and does it. relay.py: cuts connections. run.py: the whole.
"""
