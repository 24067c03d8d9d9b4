"""A master's dealings with its cluster beside its pods: its Job, its Lease, its objects."""
