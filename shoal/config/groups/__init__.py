"""Flags by subject, each declared once."""
