"""What engines that compute on NumPy's arrays share.

    pipeline.py  ranges of records to batches of arrays, through the user's feed_batch
    taken.py     the columns as feed_batch gets them, and which ones it takes
    given.py     what feed_batch gives, as arrays of one spec

Imports no framework.
"""
