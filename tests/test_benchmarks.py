"""Every benchmark can be imported: its imports and its flags are those of today's code."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"

# In one process, as several import TensorFlow. A script finds the modules beside it, as when it
# is run; those of two folders may have the same name.
IMPORT_EACH = """
import importlib.util, pathlib, sys

sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    path = pathlib.Path(name)
    before = set(sys.modules)
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(f"benchmark_{path.stem}", path)
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # where dataclasses look
    spec.loader.exec_module(sys.modules[spec.name])
    sys.path.remove(str(path.parent))
    for other in set(sys.modules) - before:
        at = getattr(sys.modules[other], "__file__", None) or ""
        if pathlib.Path(at).parent == path.parent:
            del sys.modules[other]
    print(name)
"""


# tox tests the wheel, beside which the benchmarks are not.
@pytest.mark.slow
@pytest.mark.skipif(not FOLDER.is_dir(), reason="the benchmarks are not beside the tests")
def test_every_benchmark_can_be_imported():
    # A model of the zoo is beside benchmarks/elastic_zoo/slow.py only in a job.
    scripts = [
        str(path)
        for path in sorted(FOLDER.rglob("*.py"))
        if path.parent.name not in ("elastic_zoo", "micro") and "__pycache__" not in path.parts
    ]
    assert len(scripts) > 15
    command = [sys.executable, "-c", IMPORT_EACH, str(ROOT), *scripts]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == scripts


def small_run(script, folder, result, size=("--small",)):
    """What a benchmark of tables wrote, of its small size."""
    command = [sys.executable, str(FOLDER / "tables" / script), *size, str(folder)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    return json.loads((folder / result).read_text())


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER.is_dir(), reason="the benchmarks are not beside the tests")
def test_the_benchmark_of_tables_writes_rows_and_rules(tmp_path):
    found = small_run("run.py", tmp_path, "tables.json")
    rows = [found["admission"][k]["rows"] for k in "1235"]
    assert rows == sorted(rows, reverse=True)
    assert set(found["share of pushed ids with a row"]) == {"stationary", "drifting"}


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER.is_dir(), reason="the benchmarks are not beside the tests")
def test_the_benchmark_of_churn_compares_what_tables_keep_with_what_the_model_learns(tmp_path):
    found = small_run("churn.py", tmp_path, "churn.json")
    settings = {name: runs[0] for name, runs in found["settings"].items()}
    rows = {name: each["rows"][-1] for name, each in settings.items()}
    assert rows["admit_after 3"] < rows["admit_after 2"] < rows["everything"]
    assert rows["expire_after 7 days"] < rows["everything"]
    cap = rows["everything"] // 5
    assert all(count <= cap for name, count in rows.items() if name.startswith("cap"))
    aucs = [each["last third"] for each in settings.values()]
    assert all(0.6 < auc < found["best"][0] for auc in aucs)
    assert (tmp_path / "churn.svg").exists()


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER.is_dir(), reason="the benchmarks are not beside the tests")
def test_the_benchmark_of_admission_writes_memory_and_pushes(tmp_path):
    found = small_run("admission.py", tmp_path, "admission.json", ("--draws", "200000"))
    lines = [found["memory"][k] for k in "1235"]
    assert len({each["rows"] + each["counted"] for each in lines}) == 1
    assert all(found[each] > 0 for each in ("pushes", "pushes of rows that exist"))


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER.is_dir(), reason="the benchmarks are not beside the tests")
def test_the_benchmark_of_sweeps_pulls_during_one(tmp_path):
    size = ("--rows", "200000", "--rounds", "1")
    found = small_run("sweeping.py", tmp_path, "sweeping.json", size)
    assert found["pulls"] > 0
    assert len(found["p99"]["ratios"]) == 1


AS_MARKDOWN = """
from benchmarks.learning.__main__ import PROBLEMS, Run, line, markdown

first, second = PROBLEMS[2:4]
keras, less = [Run(0.80, 1.0), Run(0.81, 1.0)], [Run(0.70, 1.0, 200), Run(0.71, 1.0, 200)]
lines = [line(first, mode, keras, keras) for mode in ("Keras", "1 worker")]
lines += [line(second, "Keras", keras, keras), line(second, "4 workers", less, keras)]
print(markdown(lines))
"""


@pytest.mark.slow
@pytest.mark.skipif(not FOLDER.is_dir(), reason="the benchmarks are not beside the tests")
def test_the_table_of_what_models_learn_has_what_is_behind_first():
    command = [sys.executable, "-c", AS_MARKDOWN]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    head, _, first, second = done.stdout.splitlines()
    assert head == "| problem | updates | plain Keras | 1 worker | 2 workers | 4 workers | behind |"
    assert first == (
        "| wide and deep, Adagrad, 5 epochs | 200 | 0.8050 ± 0.0071 "
        "|  |  | -0.1000 ± 0.0071 | 4 workers |"
    )
    assert second == "| wide and deep, Adagrad | 0 | 0.8050 ± 0.0071 | +0.0000 ± 0.0071 |  |  |  |"
