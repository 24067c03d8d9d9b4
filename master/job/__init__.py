"""The decisions of a job: its phases, members, leases and checkpoints. No I/O, no clock."""
