"""Checkpoints and logs as a server writes and reads them."""
