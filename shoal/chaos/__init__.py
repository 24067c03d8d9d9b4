"""`shoal chaos`: disturb a job on purpose and say what became of it.

faults.py: what there is to be done. asked.py: reading it from text. schedule.py: what is due when.
looker.py: asks the job how far it is. watcher.py: does what is due. relay.py: cuts connections.
faulty.py: storage that fails. half_sent.py: requests that stall. run.py: the whole.
"""
