"""The engine of a process: chosen once, before Keras, and told where its framework is missing."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from shoal.base.modules.engines import FRAMEWORKS, VARIABLE
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.proto import shoal_pb2 as pb
from shoal.worker import __main__ as worker
from shoal.worker import engines
from shoal.worker.inspect import check, describe_saved, export_saved, plan
from shoal.worker.reports.progress import Progress

INSPECTING = {
    "check": (check, []),
    "plan": (plan, ["--records", "1"]),
    "export": (export_saved, ["--root", "r", "--number", "1"]),
    "checkpoint migrate": (describe_saved, ["--output", "o"]),
}
"""The processes that look at a model, by their command, with their other arguments."""


@pytest.fixture(autouse=True)
def process(monkeypatch):
    """A process whose engine is not chosen yet; the engine is this one's again at the end."""
    monkeypatch.setattr(engines, "_chosen", "tensorflow")
    monkeypatch.setenv(VARIABLE, "openvino")


@pytest.fixture
def without_frameworks(monkeypatch):
    """No framework is installed. The backend that Keras would have, as one is imported."""
    backends = []

    def importing():
        backends.append(os.environ[VARIABLE])
        raise ImportError("No module named 'it'")

    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: name)
    for module in (worker, check):
        monkeypatch.setattr(module, "import_framework", importing)
    return backends


def job_file(tmp_path, **fields):
    config = tmp_path / "job.json"
    job = JobConfig(
        model_def="m.custom_model", model_zoo=str(tmp_path), training_data="d", **fields
    )
    config.write_text(job.to_json())
    return config


@pytest.mark.parametrize("command", INSPECTING)
@pytest.mark.parametrize("engine", ["tensorflow", "jax"])
def test_a_process_that_looks_at_a_model_sets_the_backend_first(
    tmp_path, without_frameworks, command, engine
):
    module, more = INSPECTING[command]
    config = job_file(tmp_path, engine=engine)
    done = CliRunner().invoke(module.main, ["--config", str(config), *more])
    assert without_frameworks == [engine]
    words = {"tensorflow": "TensorFlow 2.16 or newer", "jax": "JAX 0.10"}[engine]
    extra = {"tensorflow": "cpu", "jax": "jax"}[engine]
    assert (done.exit_code, done.stderr) == (
        2,
        f"Error: shoal {command} needs {words}, which cannot be imported (No module named 'it'); "
        f"install it with: pip install 'shoal[{extra}]'\n",
    )


@pytest.mark.parametrize("engine", ["jax", "auto"])
def test_a_worker_sets_the_backend_first(tmp_path, monkeypatch, without_frameworks, engine):
    told = []
    monkeypatch.setattr(worker, "_report", lambda *arguments: told.append(arguments[-1]))
    # As in a pod, where the module is in the image.
    (tmp_path / "m.py").write_text("import jax\n")
    job = JobConfig.load(job_file(tmp_path, engine=engine))
    with pytest.raises(SystemExit) as ended:
        worker._work(job, None, 0, 0, None, None, Progress())
    assert (ended.value.code, without_frameworks) == (2, ["jax"])
    (failure,) = told
    assert failure.kind == pb.USER_ERROR
    assert failure.message == (
        "workers need JAX 0.10, which cannot be imported (No module named 'it'); install it with: "
        "pip install 'shoal[jax]'"
    )


def test_a_worker_tells_of_a_module_that_names_two_engines(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(worker, "_report", lambda *arguments: told.append(arguments[-1]))
    (tmp_path / "m.py").write_text("import jax\nimport torch\n")
    with pytest.raises(SystemExit):
        worker._work(JobConfig.load(job_file(tmp_path)), None, 0, 0, None, None, Progress())
    assert "names jax in line 1 (import jax) and torch in line 2" in told[0].message


def test_an_engine_that_there_is_not_is_refused(monkeypatch):
    monkeypatch.setitem(FRAMEWORKS, "mxnet", FRAMEWORKS["torch"])
    with pytest.raises(UserError, match="--engine mxnet: this version of shoal has no such engine"):
        engines.choose_engine("mxnet")
    assert os.environ[VARIABLE] == "openvino"


def test_a_keras_of_another_backend_is_refused(monkeypatch):
    found = SimpleNamespace(backend=SimpleNamespace(backend=lambda: "jax"))
    monkeypatch.setitem(sys.modules, "keras", found)
    with pytest.raises(UserError, match="--engine tensorflow: Keras was imported with its backend"):
        engines.check_backend()
    found.backend.backend = lambda: "tensorflow"
    engines.check_backend()
    monkeypatch.delitem(sys.modules, "keras")
    engines.check_backend()


CHANGING = """
import os
import keras

if keras.config.backend() == "tensorflow":
    keras.config.set_backend("jax")

def custom_model(): ...
def loss(labels, predictions): ...
def optimizer(): ...
def feed(dataset, mode, metadata): ...
"""


@pytest.mark.slow
def test_a_module_that_changes_the_backend_is_refused(tmp_path):
    (tmp_path / "m.py").write_text(CHANGING)
    config = job_file(tmp_path, engine="tensorflow")
    command = [sys.executable, "-m", "shoal.worker.inspect.check", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    told = "Error: --engine tensorflow: Keras was imported with its backend jax in a process of"
    assert told in done.stderr
