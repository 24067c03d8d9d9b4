"""torchrec's embedding bags on FBGEMM's split tables, on CPUs, in one process on both cores.

FusedEmbeddingBagCollection puts each table's Adagrad into the backward pass. Each column has a
table, as models of torchrec have; one collection holds the factors and another the linear weights,
as their widths differ. Minibatches are KeyedJaggedTensors made of the mapped arrays.
"""

from __future__ import annotations

import os

import common
import numpy as np


def main() -> None:
    given = common.options()
    import torch
    from torch import nn
    from torchrec import EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(0)
    columns = [f"c{i + 1}" for i in range(26)]
    # Ids of a column are one range of all ids: each column's table has its own part.
    ends = np.asarray(common.sizes(given.data)).cumsum()
    starts = np.concatenate([[0], ends[:-1]])

    def bags(dim: int, initial: float) -> FusedEmbeddingBagCollection:
        tables = [
            EmbeddingBagConfig(
                num_embeddings=int(end - start),
                embedding_dim=dim,
                name=f"{name}_{dim}",
                feature_names=[name],
            )
            for name, start, end in zip(columns, starts, ends, strict=True)
        ]
        made = FusedEmbeddingBagCollection(
            tables=tables,
            optimizer_type=torch.optim.Adagrad,
            optimizer_kwargs={"lr": common.RATE, "eps": 1e-7},
            device=torch.device("cpu"),
        )
        # The collection does not ask its tables' init_fn.
        for weight in made.parameters():
            nn.init.uniform_(weight, -initial, initial)
        for state in made.fused_optimizer().state_dict()["state"].values():
            for value in state.values():
                getattr(value, "fill_", lambda _: None)(common.ACCUMULATOR)
        return made

    class DeepFM(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = bags(FBGEMM_LEAST, 0.0)
            self.factors = bags(common.DIM, common.INITIAL)
            self.dense_linear = nn.Linear(13, 1)
            sizes = (26 * common.DIM + 13, *common.UNITS)
            self.hidden = nn.ModuleList(map(nn.Linear, sizes, sizes[1:]))
            self.top = nn.Linear(sizes[-1], 1)

        def forward(self, ids, dense):
            flat = self.factors(ids).values()
            vectors = flat.view(len(dense), 26, common.DIM)
            linear = self.linear(ids).values().view(len(dense), 26, FBGEMM_LEAST)
            wide = linear[:, :, 0].sum(dim=1) + self.dense_linear(dense)[:, 0]
            total = vectors.sum(dim=1)
            pairs = (total * total).sum(dim=1) - (vectors * vectors).sum(dim=(1, 2))
            deep = torch.cat([flat, dense], dim=1)
            for layer in self.hidden:
                deep = torch.relu(layer(deep))
            return wide + pairs / 2 + self.top(deep)[:, 0]

    def jagged(ids):
        # By column, each record one id.
        values = torch.from_numpy(np.ascontiguousarray((ids - starts).T)).flatten()
        return KeyedJaggedTensor(columns, values, lengths=ones)

    ones = torch.ones(26 * given.batch, dtype=torch.int64)
    progress = common.Progress(given)
    progress.roles(worker=os.getpid())
    model = DeepFM()
    tables = {id(each) for part in (model.linear, model.factors) for each in part.parameters()}
    optimizer = torch.optim.Adagrad(
        [each for each in model.parameters() if id(each) not in tables],
        lr=common.RATE,
        initial_accumulator_value=common.ACCUMULATOR,
        eps=1e-7,
    )
    measure = nn.BCEWithLogitsLoss()
    for ids, dense, labels in common.Data(given.data).batches(given.batch):
        logits = model(jagged(ids), torch.from_numpy(dense))
        loss = measure(logits, torch.from_numpy(labels))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        progress.add(given.batch)
    scores, kept = [], []
    with torch.no_grad():
        for ids, dense, labels in common.Data(given.data, "validation").batches(given.batch):
            scores.append(model(jagged(ids), torch.from_numpy(dense)).numpy())
            kept.append(labels)
    auc = common.area_under_curve(np.concatenate(kept), np.concatenate(scores))
    progress.tell(auc, "torchrec", "fbgemm-gpu-cpu", "torch")


FBGEMM_LEAST = 4
"""Columns of the narrowest table that FBGEMM takes; the linear weights use the first."""

if __name__ == "__main__":
    main()
