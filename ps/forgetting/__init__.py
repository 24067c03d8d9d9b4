"""Rows that are removed: when, which, and the space that they leave."""
