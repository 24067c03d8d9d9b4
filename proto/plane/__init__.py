"""The data plane: calls that carry arrays, over blocking sockets with a thread a connection.

    message.py       the prefix of a message, and the kinds there are
    link.py          one connection: exact reads into buffers, scattered writes, deadlines
    hello.py         who is at the other end: how each connection begins
    server.py        the listener, a thread a connection, and how a request is answered
    direct.py        who answers requests without Python
    client.py        the connections to one peer, and one exchange on one of them

Knows arrays and refusals, and nothing of tables. All other calls are gRPC's
(proto/channels/serving.py, proto/channels/rpc.py).
"""
