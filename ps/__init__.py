"""The parameter server: one process that holds a shard of a model.

    tables.py       the shard of the model: row stores, dense slice, version
    gradients.py    one push, unpacked
    pulls.py        the answers to pulls
    pushes.py       which push was applied last, worker by worker; fencing
    update_log/     the write-ahead log of pushes, and its replay
    checkpoint.py   a shard of the model to files; restoring.py: back
    unbroken.py     a model changes wholly, or the server ends itself
    recovery.py     what a server that is started again restores, and which workers have met it
    shards.py       the calls that take a checkpoint
    service.py      all calls: messages and frames in, messages and frames out
    __main__.py     the process

Imports native/ and proto/, never TensorFlow.
"""

from shoal.proto import tls13 as _tls13  # noqa: F401 - before anything imports gRPC
