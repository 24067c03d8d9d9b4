"""Gradients, optimizers and class weights of a model."""
