"""Models of PyTorch and JAX are trained by pods, which find out the engine themselves."""

import shutil

import pyarrow.parquet as pq
import pytest

from tests.jobs.conftest import movielens as movielens
from tests.kubernetes.jobs import left_of, result_in

TORCH = """
import torch, shoal.torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = shoal.torch.Embedding(4), shoal.torch.Embedding(4)
        self.top = torch.nn.Linear(8, 1)

    def forward(self, features):
        vectors = [self.users(features["user"]), self.items(features["item"])]
        return self.top(torch.cat(vectors, dim=1))[:, 0]

loss = torch.nn.BCEWithLogitsLoss()

def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.01)
"""

JAX = """
import jax
import keras
from shoal.layers import Embedding

def Net():
    inputs = {name: keras.Input([], dtype="int64", name=name) for name in ("user", "item")}
    vectors = [Embedding(4, name=f"{name}s")(each) for name, each in inputs.items()]
    hidden = keras.layers.Dense(1, activation="sigmoid")(keras.layers.Concatenate()(vectors))
    return keras.Model(inputs, hidden[:, 0])

loss = "binary_crossentropy"
optimizer = lambda: keras.optimizers.Adam(0.01)
"""

FEED = """
def feed_batch(columns, mode, metadata):
    features = {name: columns[name] for name in ("user", "item")}
    return features if mode == "prediction" else (features, columns["label"])
"""


@pytest.mark.parametrize(
    ("engine", "text", "form"), [("torch", TORCH, "model.pt2"), ("jax", JAX, "model.keras")]
)
def test_pods_train_with_the_engine_that_the_module_imports(
    shoal, movielens, namespace, engine, text, form
):
    shutil.copy(movielens / "validation.parquet", shoal.path / "train.parquet")
    shoal.path.joinpath("net.py").write_text(text + FEED)
    flags = shoal.flags(
        engine,
        model_zoo="/work",
        model_def="net.Net",
        training_data="/work/train.parquet",
        validation_data="/work/train.parquet",
        servers="2",
        workers="2",
        output="/work/out",
    )
    done = shoal("train", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    result = result_in(shoal, engine)
    assert result["state"] == "succeeded"
    records = pq.read_metadata(shoal.path / "train.parquet").num_rows
    assert result["ledger"]["trained_once"] == records
    assert (shoal.path / "out" / "tables" / "users.parquet").is_file()
    assert (shoal.path / "out" / form).is_file()
    assert left_of(engine, namespace) == ""
