"""A result gives what its job has made: course, plot, tables and model."""

import json
import re

import matplotlib as mpl
import pytest

from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.result import JobResult

EVALUATIONS = [
    {"version": 10, "epoch": 0, "records": 50, "metrics": {"auc": 0.5, "loss": 0.7}, "loss": 0.6},
    {"version": 25, "epoch": 1, "records": 50, "metrics": {"auc": 0.75, "loss": None}},
]


def result(folder, **fields):
    values = {
        "state": "succeeded",
        "job_name": "j<1>",
        "command": "train",
        "seconds": 2.0,
        **fields,
    }
    return JobResult.from_json(json.dumps(values | fields), folder)


@pytest.fixture
def plain_backend():
    """Figures that need no screen."""
    before = mpl.get_backend()
    mpl.use("agg")
    yield
    mpl.use(before)


def test_the_history_has_a_column_for_each_metric(tmp_path):
    assert result(tmp_path, evaluations=EVALUATIONS).history == {
        "version": [10, 25],
        "epoch": [0, 1],
        "records": [50, 50],
        "loss": [0.6, None],
        "val_auc": [0.5, 0.75],
        "val_loss": [0.7, None],
    }
    assert result(tmp_path).history == {"version": [], "epoch": [], "records": [], "loss": []}


def test_a_plot_has_a_line_for_each_metric(tmp_path, plain_backend):
    axes = result(tmp_path, evaluations=EVALUATIONS).plot()
    assert {line.get_label(): list(line.get_xdata()) for line in axes.lines} == {
        "loss": [10, 25],
        "val_auc": [10, 25],
        "val_loss": [10, 25],
    }
    assert result(tmp_path, evaluations=EVALUATIONS).plot(axes) is axes
    mpl.pyplot.close(axes.figure)
    with pytest.raises(UserError, match=r"the job has no evaluation; give validation_data$"):
        result(tmp_path).plot()


def test_a_notebook_shows_a_table_without_markup_of_the_job_s(tmp_path):
    shown = result(tmp_path, metrics={"auc": 0.75})._repr_html_()
    assert shown.startswith("<table><caption>JobResult of shoal train: j&lt;1&gt;</caption>")
    assert ">auc</th><td style='text-align: left'>0.7500</td>" in shown


def test_a_prediction_tells_its_records_and_no_training(tmp_path):
    none = {"total": 0, "trained_once": 0, "repeated": 0, "failed": 0, "pending": 0}
    shown = repr(result(tmp_path, command="predict", records=4000, ledger=none))
    assert re.search(r"^  records +4,000$", shown, re.MULTILINE)
    assert "training records" not in shown


def test_a_job_without_an_export_says_how_to_have_one(tmp_path):
    job = result(tmp_path / "job")
    for ask in (job.load, lambda: job.table("users"), lambda: job.embedding("users", [1])):
        with pytest.raises(UserError, match=r"give train\(\) the argument output, or run"):
            ask()


GOOD = {"state": "succeeded", "job_name": "j", "command": "train"}


@pytest.mark.parametrize(
    "content",
    [
        b'{"state": "succ',
        b"\xff",
        b"[" * 100_000,
        b'{"state": ' + b"1" * 5000 + b"}",
        *(
            json.dumps(GOOD | other).encode()
            for other in (
                {"job_name": 3},
                {"seconds": "long"},
                {"ledger": [1]},
                {"ledger": {"total": "1"}},
                {"metrics": {"auc": []}},
                {"evaluations": [{}]},
                {"evaluations": [1]},
                {"failure": {}},
                {"tables": {"t": 1}},
                {"bad_records": {"a": 1}},
            )
        ),
        b'{"state": "succeeded"}',
    ],
    ids=range(15),
)
def test_a_damaged_result_is_an_error_that_names_the_file(tmp_path, content):
    path = tmp_path / "result.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{path}: "):
        JobResult.read(path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="not a regular file"):
        JobResult.read(path)


@pytest.mark.parametrize(
    "content", [b"\xff", b"[" * 100_000, b'{"seed": ' + b"1" * 5000 + b"}", b"[]", b'{"seed": "a"}']
)
def test_a_damaged_configuration_is_an_error_that_names_the_file(tmp_path, content):
    path = tmp_path / "job.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"^--config: {path}"):
        JobConfig.load(path)
