"""The parts that engines share that compute on NumPy's arrays.

    pipeline.py    ranges of records to batches of arrays
    feed_batch.py  the user's function, called with columns
    taken.py       the columns as it gets them, and which ones it takes
    given.py       what it gives, as arrays of one spec
    vectors.py     rows to the vectors of ids, and gradients back

Imports no framework.
"""
