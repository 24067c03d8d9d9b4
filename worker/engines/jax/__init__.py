"""The engine of Keras's models on JAX.

engine.py      what the worker knows of it
build.py       the model, with what is refused of it
pipeline.py    batches of NumPy's arrays, of types that JAX has
arrays.py      those arrays as a step takes them, where int64 is int32
programs.py    jaxprs: what their outputs follow from, and what they read
ids.py         the ids that a model looks up, without running it
lookups.py     from embedding layers to ids, and from vectors back to embedding layers
dense.py       variables as one vector
losses.py      the user's losses
pairs.py       losses that pair each label with each prediction
steps.py       the compiled training step and prediction
evaluation.py  metrics
exporter.py    model.keras

It imports no TensorFlow. Importing this package imports JAX, with as many threads as the process
may use.
"""

import os

from shoal.native.cores import allowed_cores

# Read at the first array: XLA counts the cores of the machine, not those of a container's quota.
os.environ.setdefault("PJRT_NPROC", str(allowed_cores()))

import jax  # noqa: F401
