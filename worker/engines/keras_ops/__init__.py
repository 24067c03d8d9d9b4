"""The parts of engines of Keras's models that compute by keras.ops: all but TensorFlow's.

    losses.py      the user's losses
    evaluation.py  metrics
    exporter.py    model.keras

Imports Keras, and no framework beneath it.
"""
