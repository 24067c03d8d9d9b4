"""Tasks: cut from the data, queued, leased, and judged when they fail."""
