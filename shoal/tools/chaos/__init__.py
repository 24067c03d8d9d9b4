"""`shoal chaos`: disturb a job on purpose and say what became of it.

faults.py: the faults there are. parsing.py: reads them from text. schedule.py: what is due when.
probe.py: asks the job how far it is. watcher.py: does what is due. relay.py: cuts connections.
faulty.py: storage that fails. half_sent.py: requests that stall. run.py: the whole.
"""
