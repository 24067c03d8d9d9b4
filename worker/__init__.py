"""The worker: one process that runs the user's model on leased tasks.

    __main__.py    the process
    loop.py        asks for tasks, dispatches, reports
    heartbeat.py   tells the master of progress
    module.py      the user's module
    pipeline.py    records to batches of tensors
    lookups.py     embedding layers to ids, rows to embedding layers
    flat.py        dense variables to one flat vector and back
    optimizer.py   a Keras optimizer to the servers' specification
    servers.py     pull and push
    model.py       the built model: registered with the servers, compiled steps
    stages.py      the training pipeline: pull ahead, compute, push behind
    evaluation.py  metric states
    prediction.py  predictions to files
    export.py      the trained model to files that need no shoal
    restore.py     and from those files back to servers

Nothing imports this package but its own main.
"""
