"""Accounts of training: which records count, and which pushes of them were applied."""
