"""Losses, gradients and optimizers of a model."""
