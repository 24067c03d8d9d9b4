"""A model, data and a scripted master for the command line's tests."""

from pathlib import Path

import pytest

from shoal.client.run import local as client

FAKE = Path(__file__).with_name("fake_master.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What uses `scripted` starts processes."""
    for item in items:
        if "scripted" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A working directory with model.py and train.csv; returns it."""
    (tmp_path / "model.py").write_text(
        "def custom_model(): ...\ndef loss(labels, predictions): ...\n"
        "def optimizer(): ...\ndef feed(dataset, mode, metadata): ...\n"
    )
    (tmp_path / "train.csv").write_text("a,label\n1,0\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def scripted(monkeypatch):
    """Makes jobs start the fake master with the behaviour given."""

    def use(behaviour):
        monkeypatch.setattr(
            client,
            "master_command",
            lambda path: [str(FAKE), behaviour, "-m", "shoal.master", "--config", str(path)],
        )

    return use
