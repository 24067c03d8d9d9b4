"""Each wrong module and wrong data is one message of `shoal check`, in this process."""

import re

import pytest

from shoal.config.job import JobConfig
from shoal.worker.inspect import check
from tests.wrong.data import LATE, csv
from tests.wrong.modules import LATE as LATE_MODULES
from tests.wrong.modules import MODULE, RAISE

pytestmark = pytest.mark.slow


@pytest.fixture
def faults(write_module, tmp_path):
    """What `shoal check` finds of a module and data, with what it prints of tracebacks."""

    def run(text, write):
        (tmp_path / "data").mkdir()
        folder = write_module(text, name="model")
        before = sorted(tmp_path.rglob("*"))
        config = JobConfig(
            command="check",
            model_def="model.custom_model",
            model_zoo=folder,
            training_data=str(write(tmp_path / "data")),
            job_dir=str(tmp_path),
        )
        data = sorted((tmp_path / "data").iterdir())
        report = check.inspect(config)
        left = {*tmp_path.rglob("*")} - {*before, *data}
        assert [path for path in left if "__pycache__" not in path.parts] == []
        return [*zip(report.faults, map(check.own_lines, report.tracebacks), strict=True)]

    return run


@pytest.mark.parametrize(("write", "words"), LATE.values(), ids=LATE)
def test_wrong_data(faults, write, words):
    ((message, lines),) = faults(MODULE, write)
    assert re.search(words, message), message
    assert lines == ""


@pytest.mark.parametrize(("text", "words"), LATE_MODULES.values(), ids=LATE_MODULES)
def test_wrong_modules(faults, text, words):
    ((message, lines),) = faults(text, csv())
    assert re.search(words, message), message
    assert "\n" not in message
    assert lines == ""


@pytest.mark.parametrize(("text", "words", "line"), RAISE.values(), ids=RAISE)
def test_modules_that_raise(faults, text, words, line):
    ((message, lines),) = faults(text, csv())
    assert re.search(words, message), message
    assert lines.startswith("Your code, the last call last:\n")
    assert line in lines
    assert "/shoal/" not in lines
    assert "site-packages" not in lines
