"""Figures of a job, written to files and to other systems."""
