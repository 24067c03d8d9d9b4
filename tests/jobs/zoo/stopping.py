"""zoo/small.py with callbacks, ours and Keras's."""

import keras
from small import custom_model, eval_metrics_fn, feed, loss, optimizer

from shoal import callbacks as ours

__all__ = ["callbacks", "custom_model", "eval_metrics_fn", "feed", "loss", "optimizer"]


def callbacks():
    return [
        ours.MaxSteps(30),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (1 + epoch)),
        keras.callbacks.EarlyStopping("val_auc", mode="max", patience=100),
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=0),
        ours.Checkpoint("auc"),
        ours.ExportBest("auc"),
    ]
