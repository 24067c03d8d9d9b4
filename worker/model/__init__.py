"""The user's model: built by its engine, and registered with the servers.

    model.py            the built model and the sequence of a step
    built.py            what an engine gives that has built one
    keras_models.py     how models of Keras are built
    embeddings/         embedding layers, and first values of rows
    learning/           gradients, optimizers as the servers' specifications
    specification.py    the model as the servers are told of it
    supported.py        the models that shoal cannot serve
    refusals.py         errors of lookups
    silent_mistakes.py  mistakes that train without an error
    callbacks.py        shoal's and Keras's callbacks
    evaluation.py       states of metrics
    lookahead.py        evaluation and prediction, with batches read and pulled ahead

Reads no data but the batches it is given; calls to the servers go through ServerGroup, and what
a framework computes through the engine (engines/).
"""
