"""Ids of any form as a flat list for a lookup, and its rows put back into that form.

Owns the combiners and masks. Where rows come from is the lookup's affair
(layers/embedding.py). What computes them is chosen by Keras's backend:

tensorflow     dense, ragged and sparse ids, and strings
padded         dense ids, of all other backends
"""

from __future__ import annotations

import keras

COMBINERS = ("sum", "mean", "sqrtn")

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"

if ON_TENSORFLOW:
    from shoal.bags.tensorflow import integers, look_up, refuse_form, scattered
else:
    from shoal.bags.padded import integers, look_up, refuse_form, scattered

__all__ = ["COMBINERS", "ON_TENSORFLOW", "integers", "look_up", "refuse_form", "scattered"]
