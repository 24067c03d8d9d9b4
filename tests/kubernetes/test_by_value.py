"""A model that a program holds is trained by pods, whose image has none of it."""

import json
import os
import shutil
import subprocess
import sys

from tests.jobs.conftest import movielens as movielens
from tests.kubernetes.image import IMAGE, PACKAGES_MOUNT, packages
from tests.kubernetes.jobs import left_of

PROGRAM = """
import json, sys
import keras, shoal
from shoal.layers import Embedding

def build():
    inputs = {name: keras.Input([], dtype="int64", name=name) for name in ("user", "item")}
    vectors = [Embedding(4, name=f"{name}s")(each) for name, each in inputs.items()]
    hidden = keras.layers.Dense(1, activation="sigmoid")(keras.layers.Concatenate()(vectors))
    return keras.Model(inputs, hidden[:, 0])

def feed_batch(columns, mode, metadata):
    features = {name: columns[name] for name in ("user", "item")}
    return features if mode == "prediction" else (features, columns["label"])

fields = json.loads(sys.argv[1])
result = shoal.train(
    model=build,
    loss="binary_crossentropy",
    optimizer=lambda: keras.optimizers.Adam(0.01),
    feed_batch=feed_batch,
    training_data="/work/train.parquet",
    output="/work/out",
    **fields,
)
asked = shoal.evaluate(restore_from=result, validation_data="/work/train.parquet", **fields)
print(json.dumps([result.job_name, result.state, result.ledger["trained_once"], asked.state]))
"""


def test_a_program_s_model_is_trained_and_evaluated(shoal, movielens, namespace):
    shutil.copy(movielens / "validation.parquet", shoal.path / "train.parquet")
    mounts = {shoal.path: "/work", packages(): f"{PACKAGES_MOUNT},readOnly"}
    fields = {
        "image": IMAGE,
        "namespace": namespace,
        "master_resources": "cpu=0.01,memory=50Mi",
        "ps_resources": "cpu=0.01,memory=50Mi",
        "worker_resources": "cpu=0.02,memory=200Mi",
        "volume": ";".join(f"hostPath={path},mount={mount}" for path, mount in mounts.items()),
    }
    shoal.path.joinpath("program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py", json.dumps(fields)],
        cwd=shoal.path,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    name, state, trained, asked = json.loads(done.stdout.splitlines()[-1])
    assert (name, state, asked) == ("model", "succeeded", "succeeded")
    assert trained > 0
    assert left_of(name, namespace) == ""
    assert shoal.path.joinpath("out", "tables", "users.parquet").is_file()
