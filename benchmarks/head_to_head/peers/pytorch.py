"""PyTorch with `nn.Embedding(sparse=True)` and its Adagrad, in one process on both cores."""

from __future__ import annotations

import os

import common


def main() -> None:
    given = common.options()
    import torch
    from torch import nn

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(0)

    class DeepFM(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Embedding(given.ids, 1, sparse=True)
            self.factors = nn.Embedding(given.ids, common.DIM, sparse=True)
            nn.init.zeros_(self.linear.weight)
            nn.init.uniform_(self.factors.weight, -common.INITIAL, common.INITIAL)
            self.dense_linear = nn.Linear(13, 1)
            sizes = (26 * common.DIM + 13, *common.UNITS)
            self.hidden = nn.ModuleList(map(nn.Linear, sizes, sizes[1:]))
            self.top = nn.Linear(sizes[-1], 1)

        def forward(self, ids, dense):
            vectors = self.factors(ids)
            wide = self.linear(ids).sum(dim=(1, 2)) + self.dense_linear(dense)[:, 0]
            total = vectors.sum(dim=1)
            pairs = (total * total).sum(dim=1) - (vectors * vectors).sum(dim=(1, 2))
            deep = torch.cat([vectors.flatten(1), dense], dim=1)
            for layer in self.hidden:
                deep = torch.relu(layer(deep))
            return wide + pairs / 2 + self.top(deep)[:, 0]

    progress = common.Progress(given)
    progress.roles(worker=os.getpid())
    model = DeepFM()
    optimizer = torch.optim.Adagrad(
        model.parameters(), lr=common.RATE, initial_accumulator_value=common.ACCUMULATOR
    )
    measure = nn.BCEWithLogitsLoss()
    for ids, dense, labels in common.Data(given.data).batches(given.batch):
        logits = model(torch.from_numpy(ids), torch.from_numpy(dense))
        loss = measure(logits, torch.from_numpy(labels))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        progress.add(given.batch)
    held = common.Data(given.data, "validation")
    scores, kept = [], []
    with torch.no_grad():
        for ids, dense, labels in held.batches(given.batch):
            scores.append(model(torch.from_numpy(ids), torch.from_numpy(dense)))
            kept.append(torch.from_numpy(labels))
    auc = common.area_under_curve(torch.cat(kept).numpy(), torch.cat(scores).numpy())
    progress.tell(auc, "torch")


if __name__ == "__main__":
    main()
