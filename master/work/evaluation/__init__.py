"""Evaluations: their rounds, and the rules that follow from their results."""
