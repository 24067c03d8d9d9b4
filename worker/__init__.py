"""The worker: one process that runs the user's model on leased tasks.

    __main__.py         the process
    check.py            the process of `shoal check`: the same classes, without servers
    export_saved.py     the process of `shoal export`: a checkpoint as an export
    loop.py             asks for tasks, dispatches, reports
    tasks.py            the training tasks, the one leased ahead, their reports
    training/           steps from batches to acknowledged pushes
    outputs/            exports and predictions
    model/              the built model: traced, compiled, registered with the servers
    input/              records to batches of tensors
    servers/            the parameter servers as a worker sees them
    attribution.py      the records that an exception is about
    storage_patience.py waiting for storage that fails
    heartbeat.py        tells the master of progress
    progress.py         what the worker has done; all rooms add to it
    told_stacks.py      and where the threads stand, if it asks
    watch.py            the thread that stands still, and where
    module.py           the user's module
    keras_internals.py  every private name of Keras that shoal uses
    tensors.py          NumPy arrays as tensors, without a copy where that is possible

A room may import the rooms and modules below it in this list, input/ and servers/ not each
other (pyproject.toml). Nothing imports this package but its own main.
"""

import os

# Keras reads it when it is imported. Models of workers are TensorFlow's, whatever the variable is
# for other programs of this shell.
os.environ["KERAS_BACKEND"] = "tensorflow"
