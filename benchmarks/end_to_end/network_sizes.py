"""Sizes of the DeepFM that all systems of the end-to-end benchmark train."""

DIM = 16
UNITS = (256, 128, 64)
RATE = 0.01
