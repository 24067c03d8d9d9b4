"""Kubernetes code that client and master share: a job's objects, and the way to the API."""
