"""Calls between processes: servers and clients of gRPC and of the data plane."""
