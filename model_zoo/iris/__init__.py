"""Iris flowers: a quick start with a CSV file."""
