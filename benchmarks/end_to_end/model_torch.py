"""The model of the end-to-end benchmark as a module of PyTorch."""

import functools

import network_sizes
import torch
from model_host import feed_batch  # noqa: F401

import shoal.torch

uniform = functools.partial(torch.nn.init.uniform_, a=-0.01, b=0.01)


class DeepFM(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = shoal.torch.Embedding(1, init=torch.nn.init.zeros_)
        self.factors = shoal.torch.Embedding(network_sizes.DIM, init=uniform)
        self.dense_linear = torch.nn.Linear(13, 1)
        sizes = (26 * network_sizes.DIM + 13, *network_sizes.UNITS)
        self.hidden = torch.nn.ModuleList(map(torch.nn.Linear, sizes, sizes[1:]))
        self.top = torch.nn.Linear(sizes[-1], 1)

    def forward(self, features):
        ids, dense = features["ids"], features["dense"]
        vectors = self.factors(ids)
        wide = self.linear(ids).sum(dim=(1, 2)) + self.dense_linear(dense)[:, 0]
        # All pairs of dot products in linear time.
        total = vectors.sum(dim=1)
        pairs = (total * total).sum(dim=1) - (vectors * vectors).sum(dim=(1, 2))
        deep = torch.cat([vectors.flatten(1), dense], dim=1)
        for layer in self.hidden:
            deep = torch.relu(layer(deep))
        return wide + pairs / 2 + self.top(deep)[:, 0]  # logits


def custom_model():
    return DeepFM()


loss = torch.nn.BCEWithLogitsLoss()


def optimizer(parameters, rate=network_sizes.RATE, accumulator=0.1, epsilon=1e-10):
    return torch.optim.Adagrad(
        parameters, lr=rate, initial_accumulator_value=accumulator, eps=epsilon
    )


def eval_metrics_fn():
    return {"auc": shoal.torch.metrics.AUC(num_thresholds=2000, from_logits=True)}
