"""The worker: one process that runs the user's model on leased tasks.

    __main__.py    the process
    loop.py        asks for tasks, dispatches, reports
    heartbeat.py   tells the master of progress
    module.py      the user's module
    pipeline.py    records to batches of tensors
    lookups.py     embedding layers to ids, rows to embedding layers
    id_trace.py    which ids a batch looks up
    flat.py        dense variables to one flat vector and back
    specs.py       Keras optimizers and initializers to the servers' specifications
    servers.py     the parameter servers, with server_calls.py, pulling.py and pushing.py
    steps.py       the compiled training step and prediction
    moves.py       the own steps under way, and what they mean for the next one
    model.py       the built model: registered with the servers, a step's sequence
    pace.py        bounded staleness: wait while too far ahead
    training_steps.py  steps, from their batches to their pushes
    stages.py      the training pipeline: pull ahead, compute, push behind
    synchronous.py with --sync: steps whose gradients wait for their update
    lookahead.py   what evaluation and prediction compute, read and pulled ahead
    evaluation.py  metric states
    prediction.py  predictions to files
    export.py      the trained model to files that need no shoal
    restore.py     and from those files back to servers

Nothing imports this package but its own main.
"""
