"""Synthetic clicks in the shape of the Criteo data: 13 numbers, 26 ids, a label."""
