"""The user's model: built, traced, compiled, and registered with the servers.

    model.py          the built model and the sequence of a step
    steps.py          the compiled training step and prediction
    embeddings/       embedding layers, ids to rows, first values of rows
    learning/         losses, gradients, optimizers as the servers' specifications
    specification.py  the model as the servers are told of it
    supported.py      the models that shoal cannot serve
    callbacks.py      shoal's and Keras's callbacks
    evaluation.py     states of metrics
    lookahead.py      evaluation and prediction, with batches read and pulled ahead

Reads no data but the batches it is given; calls to the servers go through ServerGroup.
"""
