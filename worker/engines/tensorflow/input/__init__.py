"""Records to batches of tensors.

feed.py             ranges of records to batches, through the user's feed
transformations.py  the transformations that feed adds to a dataset
chunks.py           chunks of columns as tensors, through feed_batch
numpy_feed.py       feed_batch with arrays in place of tensors
stacking.py         stacks of columns, made before feed_batch's function
"""
