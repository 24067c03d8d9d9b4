"""Records to batches: the data of each kind, the input pipeline, and reading ahead.

    data.py             the sources of training, evaluation and prediction
    feed.py             ranges of records to batches of tensors, through the user's feed
    batch.py            what it gives, and everything behind it takes
    chunks.py           chunks of columns as tensors, through feed_batch
    stacking.py         stacks of columns, made before feed_batch's function
    transformations.py  the transformations that feed adds to a dataset
    channel.py          bounded queues between threads, and reading ahead

Knows neither the model nor the servers.
"""
