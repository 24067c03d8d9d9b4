"""The user's module: loaded, sent by value, and its parameters."""
