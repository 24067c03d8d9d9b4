"""Exports of modules, read by PyTorch alone."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest

import shoal.torch
from shoal.errors import UserError
from shoal.worker.outputs import export
from shoal.worker.outputs.export_check import try_export
from tests.worker.engines.torch.conftest import CONFIG, NET
from tests.worker.engines.torch.test_training import IDS, as_batch, batches

torch = pytest.importorskip("torch")


class Source:
    """The rows of a test's servers, of IDS and no others."""

    def __init__(self, model):
        self._model = model

    def counts(self):
        return None

    def pieces(self, position):
        table = list(self._model.tables.values())[position]
        ids = np.arange(table.vocabulary) if table.vocabulary else np.sort(IDS)
        yield ids, self._model.servers.rows(position, ids)


def exported(model, tmp_path, **options):
    config = dataclasses.replace(CONFIG, output=str(tmp_path / "out"), **options)
    for given in batches(3):
        model.train_batch(as_batch(*given), 0)
    export.export(model, model.servers, config, Source(model))
    return tmp_path / "out"


@pytest.fixture
def features():
    return as_batch(*next(batches(1))).features


def test_the_program_predicts_as_the_job_for_any_number_of_records(served, tmp_path, features):
    model = served()
    folder = exported(model, tmp_path, export="auto")
    loaded = shoal.torch.load(folder)
    for size in (1, 4, 6):
        some = {name: each[:size] for name, each in features.items()}
        some["ids"][0, 0] = 12345  # never trained
        expected = model.predict_batch(some)
        np.testing.assert_allclose(loaded(some).detach(), expected, atol=1e-6)


def test_the_state_dict_predicts_as_the_job(served, tmp_path, features):
    model = served()
    folder = exported(model, tmp_path, export="state_dict")
    assert not (folder / "model.pt2").exists()
    made = type(model.model)()
    loaded = shoal.torch.load(folder, made)
    with torch.no_grad():
        found = loaded(features)
    np.testing.assert_allclose(found, model.predict_batch(features), atol=1e-6)


PLAIN = NET.replace("shoal.torch.Embedding(4)", "torch.nn.Embedding(50, 4)").replace(
    "shoal.torch.Embedding(1)", "torch.nn.Embedding(50, 1)"
)


def small(features):
    return {"ids": features["ids"] % 50, "x": features["x"]}


def test_a_plain_module_reads_its_own_state_dict(served, tmp_path, features):
    model = served(PLAIN, embedding_threshold=100)
    assert [table.vocabulary for table in model.tables.values()] == [50, 50]
    config = dataclasses.replace(CONFIG, output=str(tmp_path / "out"), export="auto")
    batch = dataclasses.replace(as_batch(*next(batches(1))), features=small(features))
    model.train_batch(batch, 0)
    export.export(model, model.servers, config, Source(model))
    made = type(model.model)()
    made.load_state_dict(torch.load(tmp_path / "out" / "state_dict.pt", weights_only=True))
    with torch.no_grad():
        found = made.eval()(batch.features)
    np.testing.assert_allclose(found, model.predict_batch(batch.features), atol=1e-6)
    assert isinstance(shoal.torch.load(tmp_path / "out", made), torch.nn.Module)


WITHOUT_SHOAL = """
import sys, numpy as np, torch
program = torch.export.load(sys.argv[1]).module()
given = np.load(sys.argv[2])
found = program({name: torch.from_numpy(given[name]) for name in ("ids", "x")})
np.testing.assert_allclose(found.detach(), given["expected"], atol=1e-6)
assert not [name for name in sys.modules if name.split(".")[0] in ("shoal", "keras", "tensorflow")]
"""


def test_a_process_without_shoal_predicts_the_same(served, tmp_path, features):
    model = served()
    folder = exported(model, tmp_path, export="pt2")
    expected = model.predict_batch(features).numpy()
    np.savez(tmp_path / "given.npz", **features, expected=expected)
    command = [sys.executable, "-c", WITHOUT_SHOAL, folder / "model.pt2", tmp_path / "given.npz"]
    subprocess.run(command, check=True, cwd=tmp_path)


def test_names_are_those_of_named_parameters(served, tmp_path):
    model = served()
    folder = exported(model, tmp_path, export="auto")
    import pyarrow.parquet as pq

    names = pq.read_table(folder / "dense.parquet")["name"].to_pylist()
    floating = [n for n, b in model.model.named_buffers() if b.is_floating_point()]
    # An Embedding has a parameter without values, which stands for its rows.
    parameters = [name for name, each in model.model.named_parameters() if each.numel()]
    assert names == parameters + floating
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [table["name"] for table in manifest["tables"]] == ["deep", "wide"]
    assert (manifest["program"], manifest["state_dict"]) == ("model.pt2", "state_dict.pt")
    assert manifest["keras"] is manifest["saved_model"] is None


@pytest.mark.parametrize("kind", ["keras", "savedmodel"])
def test_forms_of_keras_are_refused_by_name(served, kind):
    config = dataclasses.replace(CONFIG, output="out", export=kind)
    with pytest.raises(UserError, match=f"--export {kind}: a torch.nn.Module has no such form"):
        export.check(served(), config)


def test_what_torch_export_refuses_is_told_before_training(served, tmp_path, monkeypatch):
    model = served()
    config = dataclasses.replace(CONFIG, output="out", export="auto")

    def refused(*args, **options):
        raise ValueError("no such operator")

    assert export.check(model, config) == []
    monkeypatch.setattr(torch.export, "export", refused)
    (line,) = export.check(model, config)
    assert "no model.pt2" in line
    assert "no such operator" in line
    folder = exported(model, tmp_path, export="auto")
    assert not (folder / "model.pt2").exists()
    assert (folder / "state_dict.pt").exists()
    with pytest.raises(UserError, match="give --export state_dict"):
        export.check(model, dataclasses.replace(config, export="pt2"))
    with pytest.raises(UserError, match=r"has no model\.pt2"):
        shoal.torch.load(folder)


def test_check_tries_an_export_with_the_rows_of_a_batch(served, features):
    model = served()
    config = dataclasses.replace(CONFIG, output="out", export="auto")
    lines = try_export(model, config, model.servers, features)
    assert lines == ["  tried: model.pt2 predicts this batch as the model does"]
