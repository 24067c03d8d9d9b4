"""What a job publishes while it trains, so that others answer with its newest values.

    schema.py     the content of the manifests
    shares.py     the file of a server's share of a delta
    chain.py      the folder: deltas by number

A *delta* has the rows, removed ids and dense values that changed since the delta before; a *base*
has all of them.
"""
