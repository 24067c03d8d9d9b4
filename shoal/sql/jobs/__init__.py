"""Statements as jobs, and the models that these make."""
