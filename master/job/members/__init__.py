"""Members of a job: workers and servers, their starts, ends and restarts."""
