"""The notebooks of docs/notebooks run as they are written, in a real kernel."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.client.found.processes import job_processes
from tests.docs.pages import with_pages

pytestmark = [pytest.mark.job, pytest.mark.slow, with_pages]

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "docs" / "notebooks"

LINES = 15
"""Of code, from a DataFrame to a trained, plotted and queried model."""


def code_of(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def read(name):
    return json.loads((NOTEBOOKS / f"{name}.ipynb").read_text())


class Executed:
    """The cells of a notebook that has run to its end."""

    def __init__(self, name, folder, *again):
        """again: texts of cells that run twice."""
        target = folder / "executed.ipynb"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "tests.jobs.notebook"),
                *(NOTEBOOKS / f"{name}.ipynb", target, *again),
            ],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
                # No settings of whoever runs the test.
                "IPYTHONDIR": str(folder / "ipython"),
                "JUPYTER_CONFIG_DIR": str(folder / "config"),
                "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            },
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self.cells = code_of(json.loads(target.read_text()))
        for job in (folder / "shoal-jobs").glob("*/job.json"):
            assert job_processes(job) == []

    def outputs(self, part):
        """Those of each cell that has a text, without what libraries say on standard error."""
        found = [cell for cell in self.cells if part in "".join(cell["source"])]
        assert found
        return [
            [each for each in cell["outputs"] if each.get("name") != "stderr"] for cell in found
        ]

    def data(self, part):
        """The last output of the only cell that has a text, by its kind."""
        (outputs,) = self.outputs(part)
        return {kind: "".join(text) for kind, text in outputs[-1]["data"].items()}


def test_the_pages_show_notebooks_without_outputs():
    names = [path.stem for path in NOTEBOOKS.glob("*.ipynb")]
    assert sorted(names) == ["a-day", "first-model", "movielens", "pytorch", "sql", "two-towers"]
    for name in names:
        for cell in code_of(read(name)):
            assert (cell["outputs"], cell["execution_count"]) == ([], None), name


def test_a_first_model_takes_a_newcomer_fifteen_lines(tmp_path):
    lines = [
        line
        for cell in code_of(read("first-model"))
        for line in "".join(cell["source"]).split("\n")
    ]
    assert len([line for line in lines if line.strip()]) <= LINES
    run = Executed("first-model", tmp_path, "shoal.train")
    # The cell that trains was run twice: each time it had one display, which was updated.
    for number, outputs in enumerate(run.outputs("shoal.train")):
        (shown,) = outputs
        assert shown["output_type"] == "display_data"
        assert set(shown["data"]) == {"text/html", "text/plain"}
        text = "".join(shown["data"]["text/plain"])
        assert "training_data: 7,000 records" in text
        assert f"job {('model', 'model-2')[number]}: 1 server, 1 worker" in text
        assert "evaluation at version" in text
        assert "".join(shown["data"]["text/html"]).startswith("<pre")
    assert run.data("result.plot()")["image/png"]
    # User 1 clicks where the sum is odd.
    answers = re.findall(r"\[+([-+.e\d]+)\]", run.data("result.load()")["text/plain"])
    assert [round(float(value)) for value in answers] == [0, 1]
    assert "dtype=float32" in run.data("result.embedding")["text/plain"]


def test_a_day_goes_from_data_to_a_served_model(tmp_path):
    run = Executed("a-day", tmp_path)
    assert run.data("small.plot()")["image/png"]
    assert "val_auc" in run.data("small.history")["text/html"]
    compared = run.data("shoal.compare")["text/html"]
    assert "<th>small</th>" in compared
    assert "<th>large</th>" in compared
    assert "'auc': 0.9" in run.data("shoal.attach")["text/plain"].replace("1.0", "0.9")
    assert run.data("second.embedding")["text/plain"].count("[") == 3
    # It is as sure of what people like as the rule is, and serves what it predicts.
    predicted = re.findall(r"([01])\.0\s+(\d\.\S+)", run.data("second.predict")["text/plain"])
    assert len(predicted) == 4
    assert all(round(float(value)) == int(liked) for liked, value in predicted)
    served = re.findall(r"\[([-+.e\d]+)\]", run.data("served.serve")["text/plain"])
    found = [float(value) for _, value in predicted]
    assert [float(value) for value in served] == pytest.approx(found, abs=1e-4)


def test_a_module_of_pytorch_is_trained_and_used_without_shoal(tmp_path):
    pytest.importorskip("torch")
    run = Executed("pytorch", tmp_path)
    assert "val_auc" in run.data("result.history")["text/html"]
    # It is as sure of clicks as the rule is, and so is what it exported.
    shown = re.findall(r"([01])\.0\s+(\d\.\S+)\n", run.data("asked.assign")["text/plain"] + "\n")
    assert len(shown) == 6
    assert all(round(float(chance)) == int(clicked) for clicked, chance in shown)
    loaded = re.findall(r"-?\d+\.\d+", run.data("result.load()")["text/plain"])
    assert [float(logit) > 0 for logit in loaded] == [clicked == "1" for clicked, _ in shown]
    values = run.data("state_dict()")["text/plain"]
    assert "'users.weight': (31, 8)" in values
    assert "'items.ids': (30,)" in values


def test_a_model_is_trained_and_asked_by_sql(tmp_path):
    run = Executed("sql", tmp_path)
    assert run.data("GROUP BY ALL")["text/html"].count("<tr>") == 4
    (trained,) = run.outputs("TO TRAIN")
    told = "".join("".join(each.get("text", "")) for each in trained)
    assert "model buyers is trained" in told
    assert "LABEL buys INTO buyers;" in told
    (accuracy,) = re.findall(r"^0 +(\S+)$", run.data("TO PREDICT")["text/plain"], re.MULTILINE)
    assert float(accuracy) > 0.8
    # The most important first: the number that tells nothing is the last.
    shown = run.data("FROM shares")["text/plain"]
    columns = re.findall(r"^\d +(\w+)", shown, re.MULTILINE)
    assert sorted(columns[:2]) == ["age", "place"]
    assert columns[2] == "noise"
    (module,) = run.outputs("model.py")
    compile("".join(module[0]["text"]), "model.py", "exec")


def test_movielens_is_trained_beside_its_notebook(tmp_path, movielens):
    (tmp_path / "movielens").symlink_to(movielens)
    run = Executed("movielens", tmp_path)
    assert "succeeded" in run.data("job.result()")["text/html"]
    assert run.data("result.plot()")["image/png"]
    *_, shown, answers = run.outputs("shoal.predict")[0]
    assert "prediction_data: 19," in "".join(shown["data"]["text/plain"])
    assert "predicted" in "".join(answers["data"]["text/html"])


def test_two_towers_find_what_people_like_better_than_popularity_does(tmp_path, movielens):
    (tmp_path / "movielens").symlink_to(movielens)
    run = Executed("two-towers", tmp_path)
    (outputs,) = run.outputs("shoal.train")
    assert [each["output_type"] for each in outputs] == ["display_data", "execute_result"]
    # Film 50 is the nearest to itself.
    nearest = run.data("argsort(-likeness)")["text/plain"].splitlines()
    assert nearest[2].split()[:2] == ["50", "1977"]
    found = json.loads(run.data("def recall")["text/plain"].replace("'", '"'))
    assert found["two towers"] > found["popular"] > 0.1
