"""The deltas of a job: when one is due, and the state of the one under way."""
