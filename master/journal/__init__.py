"""The job's memory: its events on disk, read again by a resumed master and by the audit."""
