"""A model that learns while it is asked: `make demo-online`."""
