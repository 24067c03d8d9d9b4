"""DLRM in PyTorch, on click records in the shape of Criteo's: a module as PyTorch's users write it.

M. Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation
Systems", 2019. Data and command as in deepfm.py, with --model-def dlrm_torch.DLRM.
"""

import numpy as np
import torch

import shoal.torch

__all__ = ["DLRM", "eval_metrics_fn", "feed_batch", "loss", "optimizer"]


class DLRM(torch.nn.Module):
    """The model to train."""

    def __init__(self):
        super().__init__()
        self.vectors = shoal.torch.Embedding(16)  # any int64 id; its rows are on the servers
        self.bottom = torch.nn.Sequential(
            torch.nn.Linear(13, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16), torch.nn.ReLU()
        )
        self.top = torch.nn.Sequential(
            torch.nn.Linear(367, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
        )

    def forward(self, features):
        """The logits of clicks, float32 [batch]."""
        numbers = self.bottom(features["numbers"])
        fields = torch.cat([numbers[:, None], self.vectors(features["ids"])], dim=1)
        left, right = torch.triu_indices(27, 27, offset=1)
        pairs = (fields @ fields.mT)[:, left, right]
        return self.top(torch.cat([numbers, pairs], dim=1))[:, 0]


def feed_batch(columns, mode, metadata):
    """Features, 13 numbers and 26 ids, and the label."""
    features = {
        "numbers": np.log1p(np.stack([columns[f"i{i + 1}"] for i in range(13)], axis=1)),
        "ids": np.stack([columns[f"c{i + 1}"] for i in range(26)], axis=1),
    }
    return features if mode == "prediction" else (features, columns["label"])


loss = torch.nn.BCEWithLogitsLoss()


def optimizer(parameters):
    """Servers run its rule, for the rows too."""
    return torch.optim.Adagrad(parameters, lr=0.01)


def eval_metrics_fn():
    """Metrics of the whole validation set."""
    return {"auc": shoal.torch.metrics.AUC(from_logits=True)}
