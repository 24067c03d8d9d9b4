"""A server's write-ahead log of pushes: kept in files or in the next server's memory."""
