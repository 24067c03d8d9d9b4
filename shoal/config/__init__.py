"""The job's configuration: its fields, their flags, and which go together."""
