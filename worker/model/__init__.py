"""The user's model: built, traced, compiled, and registered with the servers.

    model.py             the built model and the sequence of a step
    steps.py             the compiled training step and prediction
    id_trace.py          the ids that a batch looks up
    lookups.py           embedding layers to ids, rows to embedding layers
    keras_embeddings.py  Keras's embedding layers whose tables the servers hold
    integers.py          integers that a model's inputs cannot keep
    dependencies.py      what an operation of a traced graph is computed from
    initial_rows.py      the first values of rows
    given_weights.py     weights of tables that the user's code gives
    vector_file.py       vectors by id that a table begins with
    row_dtypes.py        the dtypes of rows
    supported.py         the models that shoal cannot serve
    flat.py              dense variables as one flat vector, and back
    optimizer.py         Keras optimizers as the servers' specifications
    losses.py            losses and their weights
    broadcasting.py      losses that pair each label with each prediction
    accumulation.py      several minibatches' gradients as one push
    finite.py            gradients that are not finite
    callbacks.py         shoal's and Keras's callbacks
    evaluation.py        states of metrics
    lookahead.py         what evaluation and prediction compute, read and pulled ahead

Reads no data but the batches it is given; calls to the servers go through ServerGroup.
"""
