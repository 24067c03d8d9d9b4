"""Models of Keras on PyTorch: a layer is a module there, and its variables are parameters.

backend.py     what the code for models of Keras wants of PyTorch
build.py       the model, with what is refused of it
variables.py   Keras's variables as one vector
ids.py         the ids that a model looks up
lookups.py     from embedding layers to ids, and from vectors back to embedding layers
losses.py      the user's losses
pairs.py       losses that pair each label with each prediction
steps.py       the training step and prediction
evaluation.py  metrics
exporter.py    model.keras

Importing it imports Keras, which a worker of a plain torch.nn.Module does not.
"""
