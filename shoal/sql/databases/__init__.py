"""Where SELECTs run, and what becomes of the types of their columns."""
