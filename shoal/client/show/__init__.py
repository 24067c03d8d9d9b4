"""Displays of a job: terminal, notebook, reports and curves."""
