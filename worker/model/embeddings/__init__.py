"""Embedding layers of a model, their tables, and how rows reach them."""
