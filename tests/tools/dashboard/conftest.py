"""Jobs that several tests of the page share."""

import json

import pytest

from shoal.base.disk.job_folder import JobFolder
from shoal.config.job import JobConfig

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"
"""A text that is nothing but a text on the page."""


LONG = "a_table_of_many_words_" * 5
"""A name that is wider than a page."""

TRACEBACK = """Traceback (most recent call last):
  File "/x/lib/python3.11/site-packages/shoal/worker/module.py", line 44, in user_code
    yield
  File "/home/me/model.py", line 9, in custom_model
    1 / 0
ZeroDivisionError: it broke
"""


@pytest.fixture(scope="session")
def ended(tmp_path_factory):
    """The folder of a job that has failed, of which no journal is left."""
    here = tmp_path_factory.mktemp("ended")
    folder = JobFolder(here / "shoal-jobs" / "clicks")
    folder.logs.mkdir(parents=True)
    config = JobConfig(
        model_def="m.custom_model",
        job_name="clicks",
        job_dir=str(folder.path),
        training_data="x.csv",
    )
    folder.config.write_text(config.to_json())
    metrics = {"auc": 0.75, LONG: 0.5, "loss": None}
    result = {
        "job_name": "clicks",
        "command": "train",
        "state": "failed",
        "failure": {
            "kind": "USER_CODE",
            "message": f"it broke {EVIL}",
            "traceback": TRACEBACK + EVIL,
        },
        "metrics": metrics,
        "tables": {
            LONG: {"rows": 12_000_000, "memory_bytes": 3_000_000_000, "counting": 7}
            | {"expired": 1, "evicted": 2, "counts": 0}
        },
        "evaluations": [{"version": 12, "epoch": 0, "records": 20, "metrics": metrics}],
        "ledger": {"total": 100, "trained_once": 90, "repeated": 4, "failed": 1, "pending": 5},
        "messages": [
            f"1.5 s: worker-0 died {EVIL}",
            "2.0 s: s3://key:secretsecret@bucket is away",
        ],
        "stage_seconds": {"training": 10.0, "read": 2.0, "step": 7.0, "wait for pull": 1.0},
        "seconds": 12.5,
        "versions": {"ps-0": 10, "ps-1": 14},
    }
    folder.result.write_text(json.dumps(result))
    (folder.logs / "master.log").write_text(f"one\n{EVIL}\nhttps://key:secretsecret@host/\n")
    (folder.logs / "worker-0.10.log").write_text(f"ten\nit broke {EVIL}\n")
    (folder.logs / "worker-0.9.log").write_text("\n".join(map(str, range(100_000))))
    return here


@pytest.fixture
def numbers(tmp_path):
    """A file of 480 records."""
    path = tmp_path / "numbers.csv"
    path.write_text("id\n" + "".join(f"{i}\n" for i in range(480)))
    return path
