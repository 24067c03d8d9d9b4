"""Values that messages hold, and how they are read."""
