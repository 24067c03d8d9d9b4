"""The exports of a model that JAX computes."""
