"""Moves of rows between parameter servers."""
