"""Jobs started: here, in a cluster, and what is checked before."""
