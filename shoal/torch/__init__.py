"""PyTorch: modules whose rows are on the parameter servers, metrics, data sets and exports.

    Embedding, EmbeddingBag   as torch.nn's, of any number of ids
    metrics                   metrics that are exact over any number of workers
    reader                    a map-style Dataset as custom_data_reader
    load                      an exported model as plain PyTorch

Imports PyTorch, and neither TensorFlow nor Keras.
"""

from shoal.torch import metrics
from shoal.torch.datasets import reader
from shoal.torch.embedding import Embedding, EmbeddingBag
from shoal.torch.exported import load

__all__ = ["Embedding", "EmbeddingBag", "load", "metrics", "reader"]
