"""Databases, in which SELECTs run, and the types that their columns get."""
