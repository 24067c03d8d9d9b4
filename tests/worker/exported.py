"""Exports that one process without shoal loads and compares: starting it takes the longest."""

import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from shoal.worker.engines.tensorflow.outputs.served_features import as_served, served_spec
from shoal.worker.outputs.export import check, export
from tests.worker.networks import CONFIG


def export_to(folder, model, **options):
    """Export a model as a job would. options: of the job's configuration."""
    options = {"job_name": "job", "export_max_table_mb": 1 << 20} | options
    export(model, model.group, dataclasses.replace(CONFIG, output=str(folder), **options))


RELOAD = """
import json, pathlib, pickle, sys
sys.modules["shoal"] = None  # importing it raises
sys.path.append(sys.argv[2])
import keras, numpy as np, pyarrow.parquet as pq, tensorflow as tf
import corpus, own_layers

def same(found, expected, name):
    for ours, theirs in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6, err_msg=name)

def named(features, path=()):
    # By the names that a signature has for them.
    if isinstance(features, dict):
        parts = features.items()
    elif isinstance(features, (list, tuple)):
        parts = enumerate(features)
    else:
        return {"/".join(map(str, path)): features}
    return {k: v for key, part in parts for k, v in named(part, (*path, key)).items()}

for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    name, spec, values, expected = pickle.loads((folder / "case.pickle").read_bytes())
    values = [tf.constant(each) for each in values]
    features = tf.nest.pack_sequence_as(spec, values, expand_composites=True)
    saved = tf.saved_model.load(str(folder / "saved_model"))
    manifest = json.loads((folder / "manifest.json").read_text())
    if large := [table for table in manifest["tables"] if not table["in_models"]]:
        features = named(features)
        wanted = saved.signatures["ids"](**features)
        for table in large:
            file = pq.read_table(folder / table["file"])
            assert file.num_rows == table["rows"]
            vectors = np.array(file["vector"].to_pylist(), np.float32)
            if table["dtype"] == "int8":
                vectors *= file["scale"].to_numpy()[:, None]
            rows = dict(zip(file["id"].to_pylist(), vectors))
            names, default = table["signature"], table["default"]
            vectors = [rows.get(i, default) for i in wanted[names["ids"]].numpy().tolist()]
            features[names["vectors"]] = tf.constant(np.array(vectors, np.float32))
        same(saved.signatures["serving_default"](**features), [expected], name)
        print(name, "vectors", sep="|")
        continue
    loaded = ["saved_model"]
    same(saved.serve(features), expected, name)
    plain = all(isinstance(each, tf.Tensor) for each in tf.nest.flatten(features))
    if isinstance(features, dict) and plain:
        loaded.append("signature")
        outputs = saved.signatures["serving_default"](**named(features))
        if len(outputs) == 1:
            same(outputs, [expected], name)
        else:
            found = named(expected)
            assert set(found) == set(outputs)
            same([outputs[each] for each in found], list(found.values()), name)
    if (folder / "model.keras").exists():
        loaded.append("keras")
        model = keras.models.load_model(folder / "model.keras")
        same(model(features), expected, name)
    print(name, *loaded, sep="|")
"""


def tried(model, **options):
    """What an export of a model would lack, found before training. options: as `export_to`'s."""
    return check(model, dataclasses.replace(CONFIG, output="out", **options))


class Exports:
    """A folder of exports, each with features and the job's own predictions of them."""

    def __init__(self, folder):
        self.folder = folder
        self.keras = {}
        """Whether there is a model.keras, by the export's name."""

    def add(self, name, model, features, **options):
        """Export `model`, whose predictions of `features` are to be found again.

        options: of the job's configuration. Returns its folder and the predictions.
        """
        assert name not in self.keras
        expected = tf.nest.map_structure(np.asarray, model.predict_batch(features))
        folder = self.folder / str(len(self.keras))
        export_to(folder, model, **options)
        features = as_served(features, served_spec(model.model, model.features_spec))
        spec = tf.nest.map_structure(tf.type_spec_from_value, features)
        values = [np.asarray(each) for each in tf.nest.flatten(features, expand_composites=True)]
        (folder / "case.pickle").write_bytes(pickle.dumps((name, spec, values, expected)))
        self.keras[name] = (folder / "model.keras").exists()
        return folder, expected

    def load(self):
        """Names of the models that were loaded and predicted alike, by the export's name.

        Raises AssertionError if one does not, or raises.
        """
        # Elsewhere, so that the source tree is not importable by its place.
        command = [sys.executable, "-c", RELOAD, str(self.folder), str(Path(__file__).parent)]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=self.folder.parent, check=False
        )
        assert done.returncode == 0, done.stderr
        lines = [line.split("|") for line in done.stdout.splitlines()]
        return {name: loaded for name, *loaded in lines}
