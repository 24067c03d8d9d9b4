"""The model of `shoal chaos --count`, with a rule that stops training early.

Its loss becomes less with each record, so a rule that wants more of it stops after `patience`.
"""

from shoal.callbacks import EarlyStopping
from shoal.tools.counting.counts import custom_model, feed_batch, loss, optimizer

__all__ = ["callbacks", "custom_model", "feed_batch", "loss", "optimizer"]


def callbacks():
    """The rule."""
    return [EarlyStopping("loss", patience=2, mode="max")]
