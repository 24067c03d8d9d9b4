"""Statistics of columns from samples of the data."""
