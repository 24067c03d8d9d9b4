"""The user's modules are those that the job began with, whatever is edited meanwhile."""

import inspect
import linecache
import sys
from types import SimpleNamespace

import pytest
import tensorflow as tf

from shoal.base.disk.job_folder import JobFolder
from shoal.base.modules.module_texts import changed
from shoal.client.run import local
from shoal.config.job import JobConfig
from shoal.worker.code.kept_modules import KeptModules
from shoal.worker.code.module import load_module
from tests.worker.conftest import MODULE

HELPERS = """
import tensorflow as tf

def shift(x):
    if x > 0:
        return x + 1
    return x
"""

OWN = ("model", "helpers", "parts", "parts.more", "late")


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """A worker that begins: gives what load_module() gives, in a process that has none of it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(linecache, "updatecache", linecache.updatecache)
    before = list(sys.meta_path)

    def begin():
        forget()
        return load_module(
            str(tmp_path / "zoo"),
            "model.custom_model",
            kept=KeptModules(JobFolder(tmp_path / "job").modules),
        )

    def forget():
        sys.meta_path[:] = before
        for name in OWN:
            sys.modules.pop(name, None)

    yield begin
    forget()


@pytest.fixture
def zoo(tmp_path):
    folder = tmp_path / "zoo"
    (folder / "parts").mkdir(parents=True)
    (folder / "model.py").write_text(
        MODULE
        + "from helpers import shift\nfrom parts.more import FACTOR\n"
        + "def callbacks():\n    import late\n    return [late.VALUE, FACTOR, shift]\n"
    )
    (folder / "helpers.py").write_text(HELPERS)
    (folder / "parts" / "__init__.py").write_text("")
    (folder / "parts" / "more.py").write_text("FACTOR = 2\n")
    (folder / "late.py").write_text("VALUE = 7\n")
    return folder


def test_a_worker_that_begins_later_has_the_texts_of_the_first(worker, zoo, tmp_path):
    value, factor, shift = worker().callbacks()
    assert (value, factor) == (7, 2)
    for name in ("model.py", "helpers.py", "parts/more.py", "late.py"):
        (zoo / name).write_text("raise RuntimeError('edited')\n")
    value, factor, shift = worker().callbacks()
    assert (value, factor) == (7, 2)
    # AutoGraph reads the text of a function, of which it has converted none yet.
    assert int(tf.function(shift)(tf.constant(1))) == 2
    assert inspect.getsource(shift).startswith("def shift(x):")
    (zoo / "model.py").unlink()
    assert worker().callbacks()[:2] == [7, 2]
    kept = JobFolder(tmp_path / "job").modules
    assert [path.rpartition("/")[2] for path in changed(kept)] == [
        *("helpers.py", "late.py", "model.py", "more.py")
    ]


def test_of_two_workers_at_once_the_first_one_counts(zoo, tmp_path):
    finder = KeptModules(tmp_path / "modules")
    first, second = (finder.find_spec("late", [str(zoo)]).loader for _ in range(2))
    assert first._keep(b"VALUE = 1\n") == second._keep(b"VALUE = 2\n") == b"VALUE = 1\n"
    assert second.get_data(str(zoo / "late.py")) == b"VALUE = 1\n"
    assert len(list((tmp_path / "modules").rglob("*late*"))) == 1


def test_installed_modules_and_what_was_given_by_value_stay_where_they_are(tmp_path):
    finder = KeptModules(tmp_path / "job" / "modules")
    (tmp_path / "job" / "given").mkdir(parents=True)
    (tmp_path / "job" / "given" / "model.py").write_text("")
    given = finder.find_spec("model", [str(tmp_path / "job" / "given")])
    for spec in (*map(finder.find_spec, ("json", "keras", "shoal")), given):
        assert type(spec.loader).__module__ != KeptModules.__module__
    assert finder.find_spec("there_is_no_such_module") is None


def test_a_text_that_cannot_be_kept_is_run_nevertheless(zoo, tmp_path, caplog):
    (tmp_path / "modules").write_text("in the way")
    loader = KeptModules(tmp_path / "modules").find_spec("late", [str(zoo)]).loader
    assert loader.get_data(str(zoo / "late.py")) == b"VALUE = 7\n"
    assert "late.py cannot be kept" in caplog.text


def test_resume_tells_what_has_changed_and_takes_the_texts_of_now(
    worker, zoo, tmp_path, monkeypatch
):
    worker()
    folder = JobFolder(tmp_path / "job")
    folder.journal.mkdir()
    config = JobConfig(
        command="train", model_def="model.custom_model", training_data="d", job_dir=str(folder.path)
    )
    folder.config.write_text(config.to_json())
    told = []
    monkeypatch.setattr(
        local, "_follow", lambda *given, resume: told.extend(given[4]) or SimpleNamespace()
    )
    for name in ("check_inputs", "check_output", "try_output"):
        monkeypatch.setattr(local, name, lambda config: None)
    monkeypatch.setattr(local.Series, "ended", lambda *given: None)
    (zoo / "helpers.py").write_text(HELPERS + "# mended\n")
    local.resume_job(str(folder.path), {}, SimpleNamespace())
    assert told == [
        f"{zoo}/helpers.py has changed since the job began: what is left is trained by its text "
        "of now"
    ]
    assert not folder.modules.exists()
