"""Losses, gradients, optimizers and class weights of a model."""
