"""Calls of the master to servers, and the threads that make them."""
