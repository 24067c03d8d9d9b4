"""The features of the end-to-end benchmark in NumPy, for engines other than TensorFlow."""

import numpy as np

DENSE = [f"i{i + 1}" for i in range(13)]
CATEGORICAL = [f"c{i + 1}" for i in range(26)]


def feed_batch(columns, mode, metadata):  # noqa: ARG001
    """Columns of a minibatch to (features, labels)."""
    features = {
        "ids": np.stack([columns[name] for name in CATEGORICAL], axis=1),
        "dense": np.log1p(np.stack([columns[name] for name in DENSE], axis=1)),
    }
    return features if mode == "prediction" else (features, columns["label"])
