"""The engine that a module asks for by its text, and by Keras's configuration."""

import json

import pytest

from shoal.base.modules.engines import VARIABLE, asked_for
from shoal.errors import UserError


@pytest.fixture(autouse=True)
def keras_home(tmp_path, monkeypatch):
    """Keras's folder, without a keras.json; no backend by the environment."""
    home = tmp_path / "keras"
    home.mkdir()
    monkeypatch.setenv("KERAS_HOME", str(home))
    monkeypatch.delenv(VARIABLE, raising=False)
    return home


def asks(tmp_path, text):
    path = tmp_path / "model.py"
    path.write_text(text)
    return asked_for(path)


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("import keras\nimport tensorflow as tf\n", "tensorflow"),
        ("from tensorflow.keras import layers\n", "tensorflow"),
        ("import torch\nimport keras\n", "torch"),
        ("import torch.nn.functional as F\n", "torch"),
        ("import shoal.torch\n", "torch"),
        ("from shoal.torch import Embedding\n", "torch"),
        ("from shoal import torch\n", "torch"),
        ("import jax.numpy as jnp\n", "jax"),
        ("from flax import nnx\n", "jax"),
        ("try:\n    import fast\nexcept ImportError:\n    import jax\n", "jax"),
        ("def custom_model():\n    import torch\n", "torch"),
        ("import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras\n", "jax"),
        # None of them: names that begin alike, and what only type checkers import.
        ("import torchlike, jaxtyping\n", "tensorflow"),
        ("from . import torch\nimport keras\n", "tensorflow"),
        ("if typing.TYPE_CHECKING:\n    import torch\nelse:\n    import jax\n", "jax"),
        ("from shoal.layers import Embedding\n", "tensorflow"),
    ],
)
def test_a_module_asks_for_what_it_imports(tmp_path, text, engine):
    assert asks(tmp_path, text) == engine


def test_two_frameworks_are_refused_with_their_lines(tmp_path):
    text = "import tensorflow as tf\nimport keras\n\nfrom torch import nn\n"
    with pytest.raises(UserError) as told:
        asks(tmp_path, text)
    assert str(told.value) == (
        f"--engine: {tmp_path}/model.py names tensorflow in line 1 (import tensorflow as tf) and "
        "torch in line 4 (from torch import nn), and one of them computes with the model: give "
        "--engine tensorflow or --engine torch, or remove the other"
    )


def test_keras_alone_has_its_backend_by_its_configuration(tmp_path, keras_home, monkeypatch):
    file = keras_home / "keras.json"
    for content in ('{"backend": "jax"', "[]", "{}"):
        file.write_text(content)
        assert asks(tmp_path, "import keras\n") == "tensorflow"
    file.write_text(json.dumps({"floatx": "float32", "backend": "jax"}))
    assert asks(tmp_path, "import keras\n") == "jax"
    assert asks(tmp_path, "import keras, torch\n") == "torch"
    monkeypatch.setenv(VARIABLE, "torch")
    assert asks(tmp_path, "import keras\n") == "torch"
    assert asked_for(tmp_path / "missing.py") == "torch"


def test_a_user_without_a_home_has_no_configuration(tmp_path, monkeypatch):
    for name in ("KERAS_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    assert asks(tmp_path, "import keras\n") == "tensorflow"


def test_a_backend_that_trains_nothing_is_refused(tmp_path, keras_home, monkeypatch):
    file = keras_home / "keras.json"
    file.write_text(json.dumps({"backend": "openvino"}))
    with pytest.raises(UserError, match=rf"--engine: {file} names Keras's backend openvino, which"):
        asks(tmp_path, "import keras\n")
    monkeypatch.setenv(VARIABLE, "numpy")
    with pytest.raises(UserError, match="the variable KERAS_BACKEND names Keras's backend numpy"):
        asks(tmp_path, "import keras\n")
