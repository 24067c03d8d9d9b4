"""Starting, following, finding and ending jobs, on this machine or in a cluster."""
