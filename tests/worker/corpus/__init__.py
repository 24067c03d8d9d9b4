"""Models as Keras's examples and the users of its forerunners write them, with plain Keras layers.

Each is a function that builds the model, with features of a batch. Their tables have 40 rows or
more; other embeddings have fewer. Whoever loads a model.keras of them imports this package.
"""

from . import forerunners, recommendation, structured

MODELS = structured.MODELS | recommendation.MODELS | forerunners.MODELS
"""Of each, what builds it and features of a batch."""
