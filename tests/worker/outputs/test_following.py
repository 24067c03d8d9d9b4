"""A followed model predicts as the job does: the exporter's SavedModel, and rows from deltas."""

import fsspec
import numpy as np
import pytest

import shoal
from shoal.deltas import walking
from tests.worker.networks import IDS, as_batch, batches
from tests.worker.outputs.builds import BUILDS, trained
from tests.worker.outputs.live import FEATURES, Live, expected

pytestmark = pytest.mark.slow


@pytest.fixture
def live(served, tmp_path, monkeypatch):
    monkeypatch.setattr(walking, "POLL_SECONDS", 0.01)

    def make(build="functional with statistics", **options):
        made = Live(tmp_path / "live", trained(served, BUILDS[build]), **options)
        made.publish()
        return made

    return make


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
