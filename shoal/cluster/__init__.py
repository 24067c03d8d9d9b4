"""What client and master share of Kubernetes: a job's objects, and the way to the API."""
