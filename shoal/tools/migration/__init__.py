"""Checkpoints of a changed model: what is kept, and the new checkpoint."""
