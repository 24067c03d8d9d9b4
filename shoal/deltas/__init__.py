"""Deltas: the changes of a model, which its job publishes for others to answer with.

    schema.py     the content of the manifests
    shares.py     the file of a server's share of a delta
    chain.py      the folder: deltas by number

A *delta* has the rows, removed ids and dense values that changed since the delta before; a *base*
has all of them.
"""
