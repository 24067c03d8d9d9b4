"""The parameter server: one process that holds a share of a model.

    tables.py     the model's share: row stores, dense slice, versions
    gradients.py  one push, unpacked
    pushes.py     which push was applied last, worker by worker; fencing
    checkpoint.py a share to files and back
    comeback.py   what a server that is started again restores, and who has met it since
    shares.py     the calls that take a checkpoint
    service.py    frames and messages to calls of the two above
    __main__.py   the process

Imports native/ and proto/, never TensorFlow.
"""

from shoal.proto import tls13 as _tls13  # noqa: F401 - before anything imports gRPC
