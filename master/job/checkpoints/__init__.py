"""Checkpoints: when they are taken, what becomes of them, and who waits for them."""
