"""Records to batches: the data of each kind, the input pipeline, and reading ahead.

    data.py             the sources of training, evaluation and prediction
    feed.py             ranges of records to batches of tensors, through the user's feed
    chunks.py           chunks of columns as tensors
    transformations.py  the transformations that feed adds to a dataset
    channel.py          bounded queues between threads, and reading ahead

Knows neither the model nor the servers.
"""
