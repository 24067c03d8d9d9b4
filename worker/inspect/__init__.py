"""Processes with TensorFlow that are no workers: they look at a model or export one."""
