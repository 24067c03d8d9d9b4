"""The launchers of a job's processes: children of the master on one machine, pods in a cluster."""
