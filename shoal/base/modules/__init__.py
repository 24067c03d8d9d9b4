"""The user's modules as text and as Python has them, with their tracebacks and stacks."""
