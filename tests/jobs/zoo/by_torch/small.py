"""As small.py of the folder above, as a module of PyTorch."""

import functools

import torch

import shoal.torch


def feed_batch(columns, mode, metadata):
    features = {"user": columns["user"], "item": columns["item"]}
    return features if mode == "prediction" else (features, columns["label"])


class Small(torch.nn.Module):
    def __init__(self, width=8):
        super().__init__()
        normal = functools.partial(torch.nn.init.normal_, std=0.05)
        self.users = shoal.torch.Embedding(width, init=normal)
        self.items = shoal.torch.Embedding(8)
        self.hidden = torch.nn.Linear(width + 8, 7)
        self.norm = torch.nn.BatchNorm1d(7)
        self.dropout = torch.nn.Dropout(0.3)
        self.last = torch.nn.Linear(7, 1)

    def forward(self, features):
        vectors = torch.cat([self.users(features["user"]), self.items(features["item"])], 1)
        hidden = self.dropout(self.norm(torch.relu(self.hidden(vectors))))
        return torch.sigmoid(self.last(hidden))[:, 0]


def custom_model(width=8):
    return Small(width)


loss = torch.nn.BCELoss()


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def scheduler(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda version: 0.9 ** (version / 40))


def eval_metrics_fn():
    return {"auc": shoal.torch.metrics.AUC()}
