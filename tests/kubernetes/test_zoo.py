"""`shoal zoo`: a user's folder becomes an image in a registry, from which a job runs."""

import zipfile

import pytest

from tests.kubernetes.image import ENVIRONMENT, IMAGE
from tests.kubernetes.jobs import left_of, result_in
from tests.kubernetes.registry import Registry

MODULE = """\
import greeting  # of requirements.txt
import keras
from shoal.layers import Embedding


def custom_model():
    user = keras.Input([], dtype="int64", name="user")
    vector = Embedding(4, name="users")(user)
    return keras.Model(user, keras.layers.Dense(1, activation="sigmoid")(vector)[:, 0])


def feed(dataset, mode, metadata):
    return dataset.map(lambda row: (row["user"], row[greeting.LABEL]))


def loss(labels, predictions):
    return keras.losses.binary_crossentropy(labels, predictions)


def optimizer():
    return keras.optimizers.Adam(0.01)
"""


def write_wheel(path):
    """A package of one module, as pip installs it."""
    info = "greeting-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("greeting.py", 'LABEL = "clicked"\n')
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def registry(tmp_path):
    with Registry(tmp_path / "registry") as made:
        yield made


def test_a_folder_becomes_an_image_that_the_cluster_pulls(
    shoal, namespace, registry, monkeypatch, tmp_path
):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    settings = tmp_path / "registries.conf"
    settings.write_text(f'[[registry]]\nlocation = "{registry.address}"\ninsecure = true\n')
    monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(settings))
    models = shoal.path / "models"
    models.mkdir()
    (models / "mine.py").write_text(MODULE)
    wheel = "greeting-1.0-py3-none-any.whl"
    write_wheel(models / wheel)
    (models / "requirements.txt").write_text(f"/model_zoo/{wheel}\n")
    image = f"{registry.address}/team/models:1"
    for words in (
        ("init", "models", "--base", IMAGE),
        ("build", "models", "--image", image, "--tool", "buildah"),
        ("push", "--image", image, "--tool", "buildah"),
    ):
        done = shoal("zoo", *words)
        assert done.returncode == 0, done.stdout + done.stderr

    rows = "".join(f"{i % 50},{i % 2}.0\n" for i in range(1000))
    (shoal.path / "clicks.csv").write_text(f"user,clicked\n{rows}")
    template = shoal.path / "pods.yaml"
    template.write_text("spec: {containers: [{imagePullPolicy: Always}]}")
    flags = shoal.flags(
        "zoo",
        image=image,
        pod_template=str(template),
        model_def="mine.custom_model",
        training_data="/work/clicks.csv",
        workers="1",
    )
    done = shoal("train", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    assert result_in(shoal, "zoo")["ledger"]["trained_once"] == 1000
    assert left_of("zoo", namespace) == ""

    absent = shoal("zoo", "push", "--image", f"{registry.address}/team/none:1", "--tool", "buildah")
    assert (absent.returncode, "ended with code" in absent.stderr) == (2, True)
