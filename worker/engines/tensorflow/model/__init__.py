"""The traced and compiled model.

steps.py           the compiled training step and prediction
clipping.py        clipping of gradients
flat.py            dense variables as one vector
id_trace.py        the ids that a model looks up
lookups.py         from embedding layers to ids, and from rows back to layers
dependencies.py    what the ids of a traced model depend on
kernel_layout.py   kernels that are multiplied with the vectors of tables
losses.py          the user's losses as one scalar
sample_weights.py  weights of records in the loss
evaluation.py      metrics and their states
broadcasting.py    functions that pair each label with each prediction
conversion.py      AutoGraph, for the user's functions alone
step_errors.py     errors of kernels, told by the names of layers and features
"""
