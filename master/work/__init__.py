"""The work of a job and the state of each piece of it: values and counts, no I/O."""
