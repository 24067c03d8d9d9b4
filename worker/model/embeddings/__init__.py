"""Embedding layers of a model, their tables, and the rows that these begin with."""
