"""What there is to do in a job and what has become of it: values and counts, no I/O."""
