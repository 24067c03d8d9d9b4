"""Questions to a running job and to ended ones."""
