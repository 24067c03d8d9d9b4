"""The worker: one process that runs the user's model on leased tasks.

    __main__.py         the process
    loop.py             asks for tasks, dispatches, reports
    inspect/            processes that look at a model or export one, without a job
    tasks.py            the training tasks, the one leased ahead, their reports
    training/           steps from batches to acknowledged pushes
    outputs/            exports and predictions
    model/              the built model: traced, compiled, registered with the servers
    input/              records to batches
    servers/            the parameter servers as a worker sees them
    attribution.py      the records that an exception is about
    storage_patience.py waiting for storage that fails
    reports/            heartbeats, progress, and the thread that stands still
    code/               the user's module, and every private name of Keras that shoal uses
    engines/            what computes with the model, behind a Protocol

A room may import the rooms and modules below it in this list, input/ and servers/ not each
other (pyproject.toml). Of engines/, that is the Protocol: an engine itself stands on all other
rooms, and none imports it. Nothing imports this package but its own main.
"""
