"""Records to batches: the data of each kind, and reading ahead.

    data.py         the sources of training, evaluation and prediction
    modes.py        what these are called
    records.py      the records of ranges, in chunks of columns
    elements.py     what the user's function must give for them
    batch.py        what the engine's pipeline gives, and everything behind it takes
    spec.py         the types and shapes of a batch of arrays
    event_times.py  when records happened
    shuffling.py    records in another order than the data's
    channel.py      bounded queues between threads, and reading ahead

Knows neither the model nor the servers.
"""
