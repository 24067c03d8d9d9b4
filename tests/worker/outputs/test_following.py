"""A followed model predicts as the job does: the exporter's SavedModel, and rows from deltas."""

import shutil

import fsspec
import numpy as np
import pytest
import tensorflow as tf

import shoal
from shoal.checkpoints.folders import text
from shoal.checkpoints.formats import manifests
from shoal.checkpoints.saved import Export
from shoal.deltas import chain, walking
from shoal.deltas.schema import MODEL_FORMAT
from shoal.deltas.shares import Page
from shoal.files.storage import LocalStorage
from tests.deltas.published import ALL, write_delta
from tests.worker.exported import export_to
from tests.worker.networks import IDS, as_batch, batches
from tests.worker.outputs.builds import BUILDS, trained

pytestmark = pytest.mark.slow

UNSEEN = np.array([[999, 3, -5], [-7, -7, 12345678901]], np.int64)
FEATURES = {
    "ids": np.concatenate([IDS.reshape(2, 3), UNSEEN]),
    "x": np.array([[0.5, -1.0], [2.0, 0.0]] * 2, np.float32),
}


class Live:
    """A folder of deltas of a model that trains in the test."""

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


@pytest.fixture
def live(served, tmp_path, monkeypatch):
    monkeypatch.setattr(walking, "POLL_SECONDS", 0.01)

    def make(build="functional with statistics", **options):
        made = Live(tmp_path / "live", trained(served, BUILDS[build]), **options)
        made.publish()
        return made

    return make


def expected(live):
    features = {name: tf.constant(each) for name, each in FEATURES.items()}
    return np.asarray(live.model.predict_batch(features))


@pytest.mark.parametrize(
    "build", ["functional with statistics", "subclassed", "functional with preprocessing"]
)
def test_a_follower_predicts_as_the_job(live, build):
    published = live(build)
    with shoal.follow(published.root.location) as follower:
        before = follower.predict(FEATURES)
        np.testing.assert_allclose(before, expected(published), rtol=1e-5, atol=1e-6)
        for step, batch in enumerate(batches(), 1):
            published.model.train_batch(as_batch(*batch), step)
        published.publish(base=False)
        assert follower.wait(2, 300), follower.trouble
        after = follower.predict(FEATURES)
        np.testing.assert_allclose(after, expected(published), rtol=1e-5, atol=1e-6)
        assert np.abs(after - before).max() > 1e-4
        assert follower.counts.predictions == 2


def test_each_wrong_feature_is_named(live):
    published = live()
    with shoal.follow(published.root.location) as follower:
        for changes, words in {
            "": "features must be a dict of (ids, x|x, ids)",
            "y": r"no input 'y'; it takes ids, x",
            "ids": "input 'ids' is missing; the model takes ids, x",
        }.items():
            given = {key: each for key, each in FEATURES.items() if key != changes}
            given = [1] if not changes else given | ({"y": [1]} if changes == "y" else {})
            with pytest.raises(shoal.UserError, match=words):
                follower.predict(given)
        for wrong, words in (
            ({"ids": [[1, 2]]}, r"input 'ids' has shape \[1, 2\], the model takes \[any, 3\]"),
            ({"ids": [[1, 2], [3]]}, "input 'ids': its records have several lengths"),
            ({"ids": [[1, 2, 0.5]]}, "input 'ids' must be of int64, not of float64"),
            ({"ids": [["a", "b", "c"]]}, "input 'ids' must be of int64, not of strings"),
            ({"ids": [[2**64, 0, 0]]}, "input 'ids' must be of int64, not of"),
            ({"ids": [[1, 2, 3]]}, "different numbers of records: ids 1, x 4"),
            ({"x": [["a", "b"]]}, "input 'x' must be of float32, not of strings"),
        ):
            with pytest.raises(shoal.UserError, match=words):
                follower.predict(FEATURES | wrong)
        whole = {"ids": FEATURES["ids"].tolist(), "x": FEATURES["x"].round().astype(int).tolist()}
        assert follower.predict(whole).shape == (4, 1)


def test_another_model_answers_once_it_is_loaded(live, tmp_path):
    published = live("functional")
    with shoal.follow(published.root.location) as follower:
        first = follower.predictor
        other = live("subclassed", job="f" * 16)
        other.number, other.previous = published.number, published.previous
        other.publish()
        assert follower.wait(2, 300), follower.trouble
        assert follower.predictor is not first
        assert follower.tables == ["items"]
        np.testing.assert_allclose(
            follower.predict(FEATURES), expected(other), rtol=1e-5, atol=1e-6
        )


def test_a_saved_model_behind_a_url_is_copied(live):
    published = live()
    files, url = fsspec.filesystem("memory"), f"memory://{published.root.location}"
    files.put(published.root.location, url, recursive=True)
    with shoal.follow(url) as follower:
        np.testing.assert_allclose(
            follower.predict(FEATURES), expected(published), rtol=1e-5, atol=1e-6
        )
    with shoal.follow(url, predict=False) as follower:
        assert follower.lookup("deep", IDS).shape == (6, 4)
        with pytest.raises(shoal.UserError, match="opened without predictions"):
            follower.predict(FEATURES)
    files.rm(url, recursive=True)


def test_a_damaged_saved_model_is_not_loaded(live):
    published = live()
    path = published.root.local_path(published.of["folder"]) / "saved_model" / "saved_model.pb"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(shoal.deltas.DamagedDeltaError, match=r"saved_model\.pb"):
        shoal.follow(published.root.location)
