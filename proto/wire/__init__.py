"""Bytes on a connection: frames, handshakes and sockets."""
