"""One reader for each format of data."""
