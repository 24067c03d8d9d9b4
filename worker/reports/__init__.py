"""Reports of a worker to the master: heartbeats, progress and stacks."""
