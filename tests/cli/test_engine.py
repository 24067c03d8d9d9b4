"""--engine, as the client settles it before anything is started."""

import io
import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from shoal.api import calls
from shoal.base.disk.job_folder import JobFolder
from shoal.base.modules.engines import VARIABLE
from shoal.cli import export, migrate
from shoal.client import by_value
from shoal.client.run import local as client
from shoal.client.run.model_process import model_process
from shoal.client.show.display import LineDisplay
from shoal.config.job import JobConfig
from shoal.config.signatures import signature_of
from shoal.errors import UserError
from shoal.result import JobFailedError
from shoal.seed.kinds import IMPORTS, TRAINING, kind_of


def config(**fields):
    return JobConfig(model_def="model.custom_model", training_data="train.csv", **fields)


def run(project, **fields):
    """Run a job whose master does nothing; the engine in its job.json."""
    job = config(job_name="new", overwrite=True, **fields)
    with pytest.raises(JobFailedError):
        client.run_job(job, LineDisplay(io.StringIO()))
    return json.loads((project / "shoal-jobs" / "new" / "job.json").read_text())["engine"]


@pytest.fixture
def no_master(monkeypatch):
    monkeypatch.setattr(client, "master_command", lambda _: ["-c", "raise SystemExit(3)"])


@pytest.mark.slow
@pytest.mark.usefixtures("no_master")
def test_job_json_has_the_engine_that_trains(project, monkeypatch):
    assert run(project) == "tensorflow"
    monkeypatch.setenv(VARIABLE, "jax")
    assert run(project) == "jax"
    assert run(project, engine="torch") == "torch"
    model = project / "model.py"
    model.write_text("import torch\n" + model.read_text())
    assert run(project) == "torch"
    # One that is given is not doubted.
    model.write_text("import tensorflow\n" + model.read_text())
    assert run(project, engine="tensorflow") == "tensorflow"
    with pytest.raises(UserError, match=r"torch in line 2 \(import torch\)"):
        client.run_job(config(job_name="other"), LineDisplay(io.StringIO()))
    assert not (project / "shoal-jobs" / "other").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("no_master")
def test_a_job_that_is_resumed_may_change_its_engine(project):
    run(project)
    folder = JobFolder(project / "shoal-jobs" / "new")
    folder.journal.mkdir()
    for changes, engine in (({"engine": "jax"}, "jax"), ({}, "jax"), ({"engine": "auto"}, "jax")):
        model = project / "model.py"
        model.write_text("import jax\n" + model.read_text())
        with pytest.raises(JobFailedError):
            client.resume_job(str(folder.path), changes, LineDisplay(io.StringIO()))
        assert JobConfig.load(folder.config).engine == engine


def test_processes_that_look_at_a_model_are_told_the_engine(project, monkeypatch):
    monkeypatch.setenv(VARIABLE, "torch")
    with model_process("check", config()) as (command, folder):
        assert JobConfig.load(folder / "job.json").engine == "torch"
        kind = kind_of(command)
        assert (kind, IMPORTS[kind][1]) == (f"{TRAINING}-torch", "torch")
    assert kind_of(["-m", "shoal.worker", "--config", str(project / "none")]) == TRAINING
    assert kind_of(["-m", "shoal.worker", "--config"]) == TRAINING


@pytest.mark.parametrize(
    ("given", "exported", "old", "new"),
    [
        ({}, "jax", "jax", "jax"),
        ({"engine": "tensorflow"}, "tensorflow", "tensorflow", "tensorflow"),
        # Another module may ask for another engine.
        ({"model_def": "model.custom_model"}, "auto", "jax", "auto"),
        ({"model_def": "model.custom_model", "engine": "torch"}, "torch", "torch", "torch"),
    ],
)
def test_a_checkpoint_has_the_engine_of_its_job(project, given, exported, old, new):
    job = JobFolder(project / "shoal-jobs" / "new")
    job.path.mkdir(parents=True)
    job.config.write_text(config(job_name="new", engine="jax").resolved().to_json())
    assert export._config(str(job.path), given).engine == exported
    found = migrate._configs(str(job.path), given, "")
    assert [each.engine for each in found] == [old, new]
    if "engine" not in given:
        assert migrate._configs(str(job.path), given, "model.other")[0].engine == "auto"


# ------------------------------------------------------------ by value


class Model:
    """A model of a Keras that is loaded."""


class Module:
    """A torch.nn.Module."""


@pytest.fixture
def loaded(monkeypatch):
    """Makes a program that has loaded Keras with a backend, PyTorch or JAX."""
    for name in ("keras", "torch", "jax"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delenv(VARIABLE)

    def load(name, backend=""):
        module = ModuleType(name)
        if name == "keras":
            module.Model = Model
            module.backend = SimpleNamespace(backend=lambda: backend)
        if name == "torch":
            module.nn = SimpleNamespace(Module=Module)
        monkeypatch.setitem(sys.modules, name, module)

    return load


def test_a_model_of_keras_has_the_engine_of_its_backend(loaded):
    loaded("keras", "jax")
    for model in (Model(), Model, Model.__init__):
        assert by_value.engine_of({"model": model}, "auto") == "jax"
        assert by_value.engine_of({"model": model}, "jax") == "jax"
        with pytest.raises(UserError) as told:
            by_value.engine_of({"model": model}, "tensorflow")
        assert str(told.value) == (
            "--engine tensorflow: Keras was imported with jax in this program, and model is of it: "
            "set KERAS_BACKEND=tensorflow before Keras is imported, or leave engine out"
        )
    loaded("keras", "numpy")
    with pytest.raises(UserError, match="this program names Keras's backend numpy, which trains"):
        by_value.engine_of({"model": Model()}, "auto")


def test_a_module_of_torch_has_the_engine_torch(loaded):
    loaded("torch")
    loaded("keras", "tensorflow")
    for model in (Module(), Module):
        assert by_value.engine_of({"model": model}, "auto") == "torch"
        with pytest.raises(UserError, match=r"--engine jax: model is a torch\.nn\.Module, which"):
            by_value.engine_of({"model": model}, "jax")
    # A function may make either of them.
    assert by_value.engine_of({"model": print}, "auto") == "tensorflow"
    assert by_value.engine_of({"model": print}, "torch") == "torch"
    with pytest.raises(UserError, match="--engine torch: Keras was imported with tensorflow"):
        by_value.engine_of({"model": Model()}, "torch")


def test_a_function_has_the_engine_of_what_is_loaded(loaded, monkeypatch):
    assert by_value.engine_of({"model": print}, "auto") == "tensorflow"
    assert by_value.engine_of({"model": print}, "jax") == "jax"
    monkeypatch.setenv(VARIABLE, "jax")
    assert by_value.engine_of({"model": print}, "auto") == "jax"
    loaded("torch")
    assert by_value.engine_of({"model": print}, "auto") == "torch"


def test_the_arguments_of_a_call_are_settled(loaded):
    loaded("keras", "jax")
    parameters = signature_of("train").parameters
    arguments = {name: each.default for name, each in parameters.items()}
    arguments |= {"model": Model, "training_data": "train.csv"}
    assert calls._given("train", arguments).config.engine == "jax"
    with pytest.raises(UserError, match="--engine torch: Keras was imported with jax"):
        calls._given("train", arguments | {"engine": "torch"})
