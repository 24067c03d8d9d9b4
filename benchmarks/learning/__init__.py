"""Learning: what shoal reaches in each mode, beside plain Keras."""
