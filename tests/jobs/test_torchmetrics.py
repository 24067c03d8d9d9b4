"""A job of two workers whose metrics are torchmetrics', given by value."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("torchmetrics")

pytestmark = pytest.mark.job

PROGRAM = """
import json, sys
import numpy as np, pandas as pd, torch, torchmetrics
from torchmetrics.classification import BinaryAUROC, BinaryPrecision
import shoal, shoal.torch

class Clicks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = shoal.torch.Embedding(4), shoal.torch.Embedding(4)
        self.last = torch.nn.Linear(8, 1)

    def forward(self, features):
        vectors = [self.users(features["user"]), self.items(features["item"])]
        return self.last(torch.cat(vectors, dim=1))[:, 0]

def metrics():
    return torchmetrics.MetricCollection([BinaryAUROC(thresholds=200), BinaryPrecision()])

draw = np.random.default_rng(0)
data = pd.DataFrame({name: draw.integers(0, 50, 3000) for name in ("user", "item")})
data["clicked"] = ((data.user + data.item) % 3 == 0).astype("float32")
model = Clicks()
result = shoal.train(
    model=model,
    loss=torch.nn.BCEWithLogitsLoss(),
    optimizer=torch.optim.Adagrad(model.parameters(), lr=0.1),
    metrics=metrics(),
    label="clicked",
    training_data=data,
    validation_data=data,
    batch_size=20,
    workers=2,
)
whole = metrics()
whole.update(
    torch.tensor(result.predict(data.drop(columns="clicked"))),
    torch.tensor(data.clicked.to_numpy()).long(),
)
wanted = {name: float(value) for name, value in whole.compute().items()}
print(json.dumps([result.metrics, wanted]))
"""


def test_two_workers_find_what_torchmetrics_finds_of_all_records(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found, wanted = json.loads(done.stdout.splitlines()[-1])
    assert set(wanted) == {"BinaryAUROC", "BinaryPrecision"}
    assert {name: found[name] for name in wanted} == pytest.approx(wanted, abs=1e-4)
    assert 0.5 < wanted["BinaryAUROC"] < 1
