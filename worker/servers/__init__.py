"""The parameter servers as one worker sees them.

    group.py         all servers: register, pull, push, read and assign tables
    pulling.py       rows and dense values for a batch
    pushing.py       gradients, to each server its part, each applied once
    in_flight.py     the pushes that a pull does not have yet
    requests.py      frames of pulls and pushes
    calls.py         connections, registering again, following the routing
    cache.py         rows that were pulled before
    ids.py           ids grouped by table, server and stripe
    local.py         the same without servers, for `shoal check` and `shoal export`

Knows neither Keras nor tasks.
"""
