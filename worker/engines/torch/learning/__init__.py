"""Losses and optimizers of PyTorch, and the order in which labels and predictions are given."""
