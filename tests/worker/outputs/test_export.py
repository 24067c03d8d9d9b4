"""The export predicts as the job does, in a process that has only TensorFlow."""

import json
import random
import re

import fsspec
import keras
import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from shoal.checkpoints.formats import manifests
from shoal.checkpoints.saved import Export, open_saved
from shoal.errors import UserCodeError, UserError
from shoal.files.storage import LocalStorage
from shoal.worker.outputs.export_tables import file_names, write_parquet
from tests.worker.exported import export_to, tried
from tests.worker.networks import IDS, as_batch, batches, network, served_embedding
from tests.worker.outputs.builds import BUILDS, Subclassed, trained, within_a_layer

pytestmark = pytest.mark.slow

UNSEEN = np.array([[999, 3, -5], [-7, -7, 12345678901]], np.int64)
X = np.array([[0.5, -1.0], [2.0, 0.0]], np.float32)


@pytest.mark.parametrize("name", BUILDS)
def test_a_process_without_shoal_gives_the_jobs_predictions(served, exports, name):
    """The process that loads it is test_model_shapes.py's last test."""
    model = trained(served, BUILDS[name])
    # Trained ids and unseen ones: the default row is in the export as in the job.
    ids = np.concatenate([IDS.reshape(2, 3), UNSEEN])
    x = np.concatenate([X, X])
    exports.add(f"export, {name}", model, {"ids": tf.constant(ids), "x": tf.constant(x)})
    within = BUILDS[name] in (Subclassed, within_a_layer)
    assert exports.keras[f"export, {name}"] == (not within)


def test_tables_too_large_for_the_model_are_streamed_and_their_vectors_given(
    served, exports, cluster, server_group, monkeypatch
):
    """The process that gives them is test_model_shapes.py's last test."""
    monkeypatch.setattr("shoal.worker.outputs.export_tables.ROWS_PER_PIECE", 2)
    ids = np.concatenate([IDS.reshape(2, 3), UNSEEN])
    x = np.concatenate([X, X])
    # Both tables, one of them called twice; the larger one alone; in a class of the user's.
    cases = [("functional", 0), ("functional with statistics", 80), ("subclassed", 0)]
    # Each of the two takes less: it is the sum that counts, and the first of them goes in.
    cases.append(("functional with preprocessing", 6 * (8 + 16) + 10))
    folders = []
    for number, (build, limit) in enumerate(cases):
        model = trained(served, BUILDS[build])
        features = {"ids": tf.constant(ids), "x": tf.constant(x)}
        folder, _ = exports.add(f"large, {build}", model, features, export_max_table_mb=limit / 1e6)
        folders.append(str(folder))
        tables = Export(folders[-1]).manifest["tables"]
        external = {table["name"] for table in tables if not table["in_models"]}
        assert external == [{"deep", "wide"}, {"deep"}, {"items"}, {"wide"}][number]
        assert Export(folders[-1]).manifest["keras"] is None
        assert all(table["rows"] == IDS.size for table in tables)
    # What was streamed is restored like any other.
    fresh = served(group=server_group(cluster(1, saved=folders[0])))
    ids = np.concatenate([piece[0] for piece in fresh.group.read_table(0)])
    assert set(ids.tolist()) == set(IDS.tolist())


@pytest.mark.parametrize("kinds", [(), ("savedmodel",), ("keras",)], ids=str)
def test_what_is_exported_is_chosen(served, tmp_path, kinds):
    model = trained(served, BUILDS["functional"])
    export_to(tmp_path / "export", model, export=",".join(kinds) or "none")
    found = {path.name for path in (tmp_path / "export").iterdir()}
    expected = {"tables", "dense.parquet", "manifest.json"}
    expected |= {"saved_model"} if "savedmodel" in kinds else set()
    expected |= {"model.keras"} if "keras" in kinds else set()
    assert found == expected


def test_an_export_restores_onto_another_number_of_servers(served, cluster, server_group, tmp_path):
    model = trained(served, BUILDS["functional"])
    export_to(tmp_path / "export", model)
    saved = Export(str(tmp_path / "export"))
    fresh = served(group=server_group(cluster(3, saved=str(tmp_path / "export"))))
    ids = tf.constant(np.concatenate([IDS.reshape(2, 3), UNSEEN]))
    calls = [[ids.numpy().ravel()] for _ in fresh.tables]
    ours = model.group.pull(calls, training=False)
    theirs = fresh.group.pull(calls, training=False)
    for table in range(2):
        np.testing.assert_array_equal(
            ours.rows[table][ours.ids[table].inverses[0]],
            theirs.rows[table][theirs.ids[table].inverses[0]],
        )
    dense = saved.dense()
    for each in (model, fresh):
        each.pull_dense()
        for variable in each.trainable.variables:
            np.testing.assert_array_equal(dense[variable.path], variable.numpy())


def test_a_table_without_rows_is_exported(served, tmp_path):
    model = served()
    export_to(tmp_path / "export", model)
    features = {"ids": tf.constant(UNSEEN), "x": tf.constant(X)}
    loaded = keras.models.load_model(tmp_path / "export" / "model.keras")
    np.testing.assert_allclose(loaded(features), model.predict_batch(features), rtol=1e-6)


def test_an_export_replaces_the_one_before_only_when_it_is_whole(served, tmp_path):
    model = served()
    folder = tmp_path / "export"
    export_to(folder, model)
    (folder / "old").write_text("old")
    model.train_batch(as_batch(*next(batches())), 1)
    export_to(folder, model)  # of this job itself: a better model, or a worker's second attempt
    assert [path.name for path in tmp_path.iterdir() if "export" in path.name] == ["export"]
    assert not (folder / "old").exists()
    assert json.loads((folder / "manifest.json").read_text())["tables"][0]["rows"] == IDS.size
    with pytest.raises(UserError, match=r"is not empty; .* replace it with --overwrite"):
        export_to(folder, model, token="of another job")
    export_to(folder, model, token="of another job", overwrite=True)


@pytest.mark.parametrize("name", ["notes.txt", "manifest.json"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_is_not_shoals_is_never_replaced(served, tmp_path, name, overwrite):
    """As on Kubernetes, where the client sees no folder of the pods, and checks none."""
    model = served()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text('{"precious": 1}')
    with pytest.raises(UserError, match=r"--output: .*shoal did not write its content"):
        export_to(tmp_path / "mine", model, overwrite=overwrite)
    assert (tmp_path / "mine" / name).read_text() == '{"precious": 1}'


@pytest.fixture(params=["memory", "file"])
def remote(request, tmp_path):
    """A file system of fsspec, and a URL there."""
    files = fsspec.filesystem(request.param)
    url = f"memory://{tmp_path}/models/1"
    yield files, url.replace("memory", request.param)
    if request.param == "memory":
        files.store.clear()
        files.pseudo_dirs[:] = [""]


def test_an_export_to_a_url_is_that_to_a_folder(served, tmp_path, remote):
    files, url = remote
    model = trained(served, BUILDS["functional"])
    for number in range(2):
        export_to(url, model, token=str(number), overwrite=number > 0)
        export_to(tmp_path / str(number), model, token=str(number))
        fetched = tmp_path / f"fetched{number}"
        files.get(url, str(fetched), recursive=True)
        names = [
            sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
            for folder in (tmp_path / str(number), fetched)
        ]
        assert names[0] == names[1]
        saved = [Export(str(folder)) for folder in (tmp_path / str(number), fetched)]
        # A SavedModel is not written twice in the same bytes.
        assert saved[0].manifest | {"files": []} == saved[1].manifest | {"files": []}
        Export(url).verify()
        for table in ("deep", "wide"):
            ours, theirs = (
                dict(zip(*next(each.rows(table, 4 if table == "deep" else 1)), strict=True))
                for each in saved
            )
            assert {k: v.tolist() for k, v in ours.items()} == {
                k: v.tolist() for k, v in theirs.items()
            }
        features = {"ids": tf.constant(UNSEEN), "x": tf.constant(X)}
        loaded = tf.saved_model.load(str(fetched / "saved_model"))
        np.testing.assert_allclose(loaded.serve(features), model.predict_batch(features), rtol=1e-6)
        model.train_batch(as_batch(*next(batches())), 1)


def test_what_is_behind_a_url_goes_only_for_a_whole_export(served, remote):
    files, url = remote
    files.makedirs(url)
    files.pipe(f"{url}/precious", b"mine")
    model = served()
    with pytest.raises(UserError, match="shoal did not write its content"):
        export_to(url, model, overwrite=True)
    assert files.cat(f"{url}/precious") == b"mine"
    export_to(f"{url}/model", model)
    before = files.cat(f"{url}/model/manifest.json")
    with pytest.raises(UserError, match="replace it with --overwrite"):
        export_to(f"{url}/model", model, token="another")
    broken = served(build=unsaveable)
    with pytest.raises(UserCodeError, match="cannot be exported"):
        export_to(f"{url}/model", broken, token="another", overwrite=True)
    assert files.cat(f"{url}/model/manifest.json") == before
    assert files.exists(f"{url}/model/model.keras")
    assert not files.exists(f"{url}/model/_partial")


def test_an_export_that_cannot_be_written_is_told(served, tmp_path):
    model = served()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--output: .* Not a directory"):
        export_to(tmp_path / "file" / "export", model)


class Unreadable(keras.layers.Layer):
    """Keras cannot make it anew: it takes the name that a configuration has not."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def call(self, x):
        return x * self.scale


class Unsaveable(Unreadable):
    """A SavedModel cannot hold it either: nothing holds what it looks up in."""

    def call(self, x):
        words = tf.lookup.KeyValueTensorInitializer([0], [self.scale])
        return x * tf.lookup.StaticHashTable(words, 1.0).lookup(tf.constant(0))


def ending_with(kind):
    model = network(served_embedding)
    return keras.Model(model.input, kind(2.0)(model.output))


def unsaveable():
    return ending_with(Unsaveable)


NO_KERAS = (
    r"no model.keras: Keras cannot make layer 'un\w+' \(Un\w+\) of its get_config\(\) "
    r"\(TypeError: .* unexpected keyword argument 'trainable'\): let its __init__\(\) accept "
    r"\*\*kwargs and pass them to super\(\)"
)


def test_a_model_that_keras_cannot_read_again_has_a_saved_model_alone(served, exports, tmp_path):
    """The process that loads it is test_model_shapes.py's last test."""
    model = trained(served, lambda: ending_with(Unreadable))
    (line,) = tried(model)
    assert re.match(f"the export has the SavedModel, and {NO_KERAS}", line)
    exports.add("unreadable", model, {"ids": tf.constant(UNSEEN), "x": tf.constant(X)})
    assert not exports.keras["unreadable"]
    assert tried(model, export="savedmodel") == []
    with pytest.raises(UserError, match=f"cannot be exported. {NO_KERAS}".replace("no m", "No m")):
        tried(model, export="keras")


class Unheld(keras.layers.Layer):
    """Keras can make it anew, and a SavedModel cannot hold it."""

    def call(self, x):
        words = tf.lookup.KeyValueTensorInitializer([0], [2.0])
        return x * tf.lookup.StaticHashTable(words, 1.0).lookup(tf.constant(0))


def test_a_model_that_a_saved_model_cannot_hold_has_a_model_keras_alone(served, tmp_path):
    model = served(
        build=lambda: keras.Model(
            (given := network(served_embedding)).input, Unheld(name="words")(given.output)
        )
    )
    (line,) = tried(model)
    assert line == (
        "the export has model.keras, and no SavedModel: layer 'words' (Unheld) uses a lookup table "
        "or variable of TensorFlow that no layer holds, so a SavedModel cannot have it: make it in "
        "__init__() and keep it as an attribute of the layer"
    )
    folder = tmp_path / "export"
    export_to(folder, model)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["keras"], manifest["saved_model"]) == ("model.keras", None)
    assert not (folder / "saved_model").exists()
    features = {"ids": tf.constant(UNSEEN), "x": tf.constant(X)}
    loaded = keras.models.load_model(folder / "model.keras", {"Unheld": Unheld})
    np.testing.assert_allclose(loaded(features), model.predict_batch(features), rtol=1e-6)
    with pytest.raises(UserError, match=r"cannot be exported\. No SavedModel: layer 'words'"):
        tried(model, export="savedmodel")


def test_a_model_that_has_no_form_is_refused_before_training(served, tmp_path):
    model = served(build=unsaveable)
    for attempt in (lambda: tried(model), lambda: export_to(tmp_path / "export", model)):
        with pytest.raises((UserError, UserCodeError)) as refused:
            attempt()
        text = getattr(refused.value, "message", str(refused.value))
        assert re.search(NO_KERAS.replace("no m", "No m"), text)
        assert "No SavedModel: layer 'unsaveable' (Unsaveable) uses a lookup table" in text
        assert text.endswith(
            "Mend that, or give --export none: the job then leaves tables, dense values and "
            "checkpoints, and no model"
        )
    # What could be written stays, and says that it is not all.
    manifest = json.loads((tmp_path / "export" / "manifest.json").read_text())
    assert manifest["partial"]
    assert tried(model, export="none") == []


def test_the_layers_of_a_model_forget_its_exports(served, tmp_path):
    """Otherwise each export's rows would stay in memory."""
    model = served(build=BUILDS["functional"])
    dense = model.model.get_layer("dense")
    before = [len(dense._inbound_nodes), len(dense._outbound_nodes)]
    tried(model)
    export_to(tmp_path / "export", model)
    assert [len(dense._inbound_nodes), len(dense._outbound_nodes)] == before


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_trying_an_export_changes_nothing(served, build):
    model = served(build=build)
    before = [variable.numpy() for variable in model.model.variables]
    tried(model)
    for value, variable in zip(before, model.model.variables, strict=True):
        np.testing.assert_array_equal(value, variable.numpy())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m: m.unlink(), r"it has no manifest\.json"),
        (lambda m: m.write_text("{"), "damaged, not a manifest"),
        (lambda m: m.write_text('{"format": "other"}'), "of format other, this version reads"),
    ],
)
def test_a_folder_that_is_no_export_is_refused(served, tmp_path, change, words):
    model = served()
    folder = tmp_path / "export"
    export_to(folder, model)
    change(folder / "manifest.json")
    with pytest.raises(UserError, match=words):
        Export(str(folder))


def test_an_export_of_another_model_is_refused(served, tmp_path):
    model = served()
    export_to(tmp_path / "export", model)
    saved = Export(str(tmp_path / "export"))
    other = served(build=Subclassed)
    with pytest.raises(UserError, match="table 'items' of dim 4, the export has no such table"):
        saved.check_table("items", other.tables["items"].dim)
    with pytest.raises(UserError, match="--restore-from: variable"):
        other.register(saved.dense())


def read_all(folder):
    """Everything that --restore-from takes of an export, by name."""
    saved = open_saved(str(folder))
    found = saved.dense()
    for table in saved.manifest["tables"]:
        for ids, rows in saved.rows(table["name"], table["dim"]):
            found |= {(table["name"], id_): row for id_, row in zip(ids, rows, strict=True)}
    return {name: value.tobytes() for name, value in found.items()}


def test_no_flipped_bit_of_an_export_is_restored_as_a_value(served, tmp_path):
    model = trained(served, BUILDS["functional"])
    folder = tmp_path / "export"
    export_to(folder, model)
    listed = {file["name"] for file in Export(str(folder)).manifest["files"]}
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert listed == there - {"manifest.json"}
    assert {"model.keras", "saved_model/saved_model.pb", "dense.parquet"} < listed
    whole = read_all(folder)
    chance = random.Random(5)
    for path in (*folder.glob("tables/*"), folder / "dense.parquet", folder / "manifest.json"):
        data = path.read_bytes()
        for at in sorted(chance.sample(range(len(data)), 24)):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
            with pytest.raises(UserError, match=f"{path}: (damaged|of format)"):
                read_all(folder)
        path.write_bytes(data)
    assert read_all(folder) == whole


def test_half_a_table_is_no_export_even_with_the_right_checksums(served, tmp_path):
    model = trained(served, BUILDS["functional"])
    folder = tmp_path / "export"
    export_to(folder, model)
    storage = LocalStorage(folder)
    content = dict(Export(str(folder)).manifest)
    name = content["tables"][0]["file"]
    rows = pq.read_table(folder / name)
    half = write_parquet(storage, name, [rows.slice(0, len(rows) // 2)])
    content["files"] = [half if file["name"] == name else file for file in content["files"]]
    manifests.write(storage, manifests.MANIFEST, content)
    with pytest.raises(UserError, match=rf"{name}: {len(rows) // 2} rows, not {len(rows)}"):
        read_all(folder)


def test_tables_whose_names_would_be_the_same_files_have_files_of_their_own():
    names = file_names(["a/b", "a_b", "a_b.1"])
    assert names == ["tables/a_b.parquet", "tables/a_b.1.parquet", "tables/a_b.1.2.parquet"]
