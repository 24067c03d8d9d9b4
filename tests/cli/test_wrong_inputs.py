"""Each wrong flag, module and file that is seen without TensorFlow is one message, and no job."""

import re

import pytest
from click.testing import CliRunner

from shoal.cli.main import main
from shoal.client.run import local as client
from shoal.client.run import model_process
from tests.wrong.data import EARLY, csv
from tests.wrong.flags import FLAGS
from tests.wrong.modules import EARLY as EARLY_MODULES
from tests.wrong.modules import MODULE


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch, tmp_path):
    def refuse(*_):
        raise AssertionError("a process was started")

    monkeypatch.setattr(client, "master_command", refuse)
    monkeypatch.setattr(model_process, "run", refuse)
    monkeypatch.chdir(tmp_path)


def refused(folder, command, data, words, *flags):
    before = sorted(folder.rglob("*"))
    line = [command, "--model-def", "model.custom_model", "--training-data", str(data), *flags]
    done = CliRunner().invoke(main, line, prog_name="shoal")
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    # What click says of a wrong flag has three lines before it.
    *_, message = lines = done.stderr.splitlines()
    assert [each for each in lines if each.startswith("Error: ")] == [message]
    assert re.search(words, message), message
    assert "Traceback" not in done.output
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(("flags", "words"), FLAGS.items(), ids=FLAGS)
def test_wrong_flags(tmp_path, flags, words):
    (tmp_path / "model.py").write_text(MODULE)
    refused(tmp_path, "train", csv()(tmp_path), words, *flags.split())


@pytest.mark.parametrize("command", ["check", "train"])
@pytest.mark.parametrize(("write", "words"), EARLY.values(), ids=EARLY)
def test_wrong_data(tmp_path, command, write, words):
    (tmp_path / "model.py").write_text(MODULE)
    (tmp_path / "data").mkdir()
    refused(tmp_path, command, write(tmp_path / "data"), f"--training-data: .*(?:{words})")


@pytest.mark.parametrize("command", ["check", "train"])
@pytest.mark.parametrize(("text", "words"), EARLY_MODULES.values(), ids=EARLY_MODULES)
def test_wrong_modules(tmp_path, command, text, words):
    (tmp_path / "model.py").write_text(text)
    refused(tmp_path, command, csv()(tmp_path), f"--model-def: .*{words}")
