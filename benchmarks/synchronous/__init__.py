"""The price of a synchronous update; see __main__.py."""
