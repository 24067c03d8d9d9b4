"""The part of a model that one server holds: dense values, tables, and pushes to them."""
