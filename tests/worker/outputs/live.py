"""A folder of deltas of a model that trains in the test, and features to predict."""

import shutil

import numpy as np
import tensorflow as tf

from shoal.checkpoints.folders import text
from shoal.checkpoints.formats import manifests
from shoal.checkpoints.saved import Export
from shoal.deltas import chain
from shoal.deltas.schema import MODEL_FORMAT
from shoal.deltas.shares import Page
from shoal.files.storage import LocalStorage
from tests.deltas.published import ALL, write_delta
from tests.worker.exported import export_to
from tests.worker.networks import IDS

UNSEEN = np.array([[999, 3, -5], [-7, -7, 12345678901]], np.int64)
FEATURES = {
    "ids": np.concatenate([IDS.reshape(2, 3), UNSEEN]),
    "x": np.array([[0.5, -1.0], [2.0, 0.0]] * 2, np.float32),
}


class Live:
    """The folder, of one model."""

    def __init__(self, folder, model, job="0123456789abcdef"):
        self.root, self.model, self.job = LocalStorage(str(folder)), model, job
        self.export = folder.with_name(f"export-of-{job}")
        self.previous = ""
        self.number = 0
        self.of = None

    def publish(self, base=True):
        shutil.rmtree(self.export, ignore_errors=True)
        export_to(self.export, self.model, export_max_table_mb=0)
        export = Export(str(self.export))
        self.of = self.of or self._model(export)
        tables = export.manifest["tables"]
        pages = [
            Page("rows", position, ids=ids, values=rows)
            for position, table in enumerate(tables)
            for ids, rows in export.rows(table["name"], table["dim"])
            if ids.size
        ]
        values, spec = export.dense(), self.model.spec
        for kind, variables in (("trainable", spec.trainable), ("state", spec.non_trainable)):
            for each in variables:
                flat = values[each.name].ravel()
                if flat.size:
                    pages.append(Page(kind, first=each.offset, values=flat))
        self.number += 1
        whole = ALL if base else ~ALL
        made = write_delta(
            self.root, self.number, self.previous, self.of, [(ALL, whole, pages)], job=self.job
        )
        self.previous = made.checksum

    def _model(self, export):
        name = chain.model_name(self.job)
        folder = self.root.child(name)
        folder.make()
        place = folder.local_path("saved_model")
        shutil.copytree(self.export / "saved_model", place)
        files = [each for each in place.rglob("*") if each.is_file()]
        content = {
            "format": MODEL_FORMAT,
            "job": self.job,
            "engine": "tensorflow",
            "created": 1e9,
            "spec": text(self.model.spec),
            "tables": [
                {
                    **{key: table[key] for key in ("name", "dim", "default")},
                    "vocabulary": self.model.tables[table["name"]].vocabulary,
                    **table["signature"],
                }
                for table in export.manifest["tables"]
            ],
            "saved_model": "saved_model",
            "variables": [each.path for each in self.model.model.variables],
            "files": [
                manifests.describe(folder, str(each.relative_to(place.parent))) for each in files
            ],
        }
        described = manifests.write(folder, chain.MODEL_MANIFEST, content)
        return {"folder": name, "manifest": described}


def expected(live):
    """What the model predicts for FEATURES."""
    features = {name: tf.constant(each) for name, each in FEATURES.items()}
    return np.asarray(live.model.predict_batch(features))
