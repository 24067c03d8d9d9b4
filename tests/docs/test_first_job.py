"""The README and the guide's first job run as they are written, on less data."""

import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.job,
    # tox tests the wheel, beside which there are no pages.
    pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="the docs are not beside the tests"),
]


def blocks(page, language):
    """The code of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)


def commands(block):
    """The shoal commands of a block of shell, as lists of words."""
    lines = block.replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("shoal ")]


def run(folder, *arguments):
    """Run Python in a folder; returns what it has printed."""
    line = [sys.executable, *arguments]
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write_ratings(path, records, seed):
    """Ratings in the form of shoal.model_zoo.movielens: people like films of their own kind."""
    draw = random.Random(seed)
    rated = [(draw.randrange(50), draw.randrange(30)) for _ in range(records)]
    columns = {
        "user": pa.array([user for user, _ in rated], pa.int64()),
        "item": pa.array([item for _, item in rated], pa.int64()),
        "label": pa.array([float(user % 2 == item % 2) for user, item in rated], pa.float32()),
    }
    pq.write_table(pa.table(columns), path, row_group_size=1000)


def test_the_readmes_model_is_trained_by_its_command_and_from_python(tmp_path):
    model, from_python = blocks("README.md", "python")
    (tmp_path / "ratings.py").write_text(model)
    (tmp_path / "ratings").mkdir()
    write_ratings(tmp_path / "ratings" / "train.parquet", 8000, 1)
    write_ratings(tmp_path / "ratings" / "validation.parquet", 1000, 2)
    [train] = commands(blocks("README.md", "sh")[0])
    printed = run(tmp_path, "-m", "shoal", *train)
    told = dict(re.findall(r"^  (\S+(?: \S+)*)  +(.+)$", printed, re.MULTILINE))
    shown = re.findall(r"^  (\S+(?: \S+)*)  +", blocks("README.md", "")[0], re.MULTILINE)
    assert set(shown) <= told.keys()
    assert told["state"] == "succeeded"
    assert float(told["auc"]) > 0.8
    assert (tmp_path / "trained" / "model.keras").exists()
    assert run(tmp_path, "-c", from_python).splitlines()[-1].startswith("succeeded 0.")


def test_the_guides_first_job_runs_from_its_data_to_its_served_model(tmp_path):
    page = "docs/guide/first-job.md"
    data, model, serve, from_python = blocks(page, "python")
    (tmp_path / "make_clicks.py").write_text(data.replace("40_000", "8_000"))
    (tmp_path / "clicks.py").write_text(model)
    run(tmp_path, "make_clicks.py")
    [shell] = blocks(page, "sh")
    for command in commands(shell):
        run(tmp_path, "-m", "shoal", *command)
    assert sorted(path.name for path in (tmp_path / "predicted").glob("*.parquet"))
    served = run(tmp_path, "-c", serve + "\nimport sys\nassert 'shoal' not in sys.modules")
    assert len(served.strip("[] \n").split()) == 2
    assert "\nsucceeded 0." in run(tmp_path, "-c", from_python)
    [check] = re.findall(r"`shoal (check [^`]*)`", (ROOT / page).read_text())
    assert "Nothing unsupported" in run(tmp_path, "-m", "shoal", *shlex.split(check))
