"""The parameter server: one process that holds a shard of a model.

    model/        row stores, dense values, and pushes: unpacked, checked, fenced
    forgetting/   rows that expire or exceed a table's cap
    saved/        a shard to checkpoints and back
    update_log/   the write-ahead log of pushes, and its replay
    pulls.py      the answers to pulls
    moving.py     rows that go to another server
    shards.py     the calls that take a checkpoint
    service.py    all calls: messages and frames in, messages and frames out
    __main__.py   the process

Imports native/ and proto/, never TensorFlow.
"""

from shoal.proto.wire import tls13 as _tls13  # noqa: F401 - before anything imports gRPC
