"""As small.py, of Keras on PyTorch, with a gate "step-K" in the K-th step of a process."""

import gates
import torch  # noqa: F401  # what computes the model
from by_torch.small import feed_batch  # noqa: F401
from small import custom_model, eval_metrics_fn, optimizer  # noqa: F401
from small import loss as loss_of_small


def loss(labels, predictions):
    if getattr(predictions, "requires_grad", False):
        gates.pass_step()
    return loss_of_small(labels, predictions)
