"""`shoal checkpoint migrate` between models of whole jobs: the same predictions, and training."""

import random
import re
import shutil
import sys

import pytest

from tests.jobs.running import ZOO, completed, run

pytestmark = pytest.mark.job

RECORDS = 10_000


@pytest.fixture(scope="module")
def records(session_folder):
    """A file of records of zoo/narrow.py."""
    chance = random.Random(3)

    def line():
        user, item = chance.randrange(300), chance.randrange(1, 500)
        return f"{user},{item},{chance.random():.3f},{(user * 7 + item) % 3 == 0:d}\n"

    path = session_folder / "narrow.csv"
    path.write_text("user,item,x,label\n" + "".join(line() for _ in range(RECORDS)))
    return path


@pytest.fixture(scope="module")
def narrow(session_folder, records):
    """The folder of a job that has trained zoo/narrow.py."""
    run(
        "train",
        session_folder,
        "narrow",
        model_def="narrow.custom_model",
        training_data=records,
        output=session_folder / "narrow-out",
        batch_size=100,
        servers="2",
    ).succeeded()
    return session_folder / "narrow"


def migrate(source, target, *arguments):
    """(exit code, standard output, standard error)."""
    line = [sys.executable, "-m", "shoal", "checkpoint", "migrate", source, target, *arguments]
    done = completed(line)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def difference(printed):
    found = re.search(r"([\d,]+) records: the largest difference is (\S+) ", printed)
    return int(found[1].replace(",", "")), float(found[2])


WIDE = ("--model-def", "wide.custom_model", "--rename", "items=goods")


def test_a_grown_model_predicts_the_same_and_trains_on(narrow, records, tmp_path):
    new = tmp_path / "new"
    code, printed, errors = migrate(narrow, new, *WIDE, "--verify", RECORDS)
    assert code == 0, errors
    assert "table shops: new, dim 4" in printed
    assert "table users: padded, dim 8 -> 16" in printed
    assert "table goods: kept, renamed from items, optimizer adagrad -> adam" in printed
    assert "variable hidden/kernel: padded, 14 of 14 rows kept, 16 new rows 0" in printed
    count, largest = difference(printed)
    assert count == RECORDS
    assert largest <= 1e-6
    ended = run(
        "train",
        tmp_path,
        "on",
        model_def="wide.custom_model",
        training_data=records,
        output=tmp_path / "out",
        batch_size=100,
        restore_from=new,
    ).succeeded()
    assert ended.ledger["trained_once"] == RECORDS

    # The comparison sees a model that is not the same.
    anew = ("--reinitialise", "hidden/kernel", "--verify", 500)
    code, printed, errors = migrate(narrow, tmp_path / "other", *WIDE, *anew)
    assert code == 0, errors
    assert "predictions may change by variables with initial values: hidden/kernel" in printed
    count, largest = difference(printed)
    assert count == 500
    assert largest > 1e-4


def test_losses_are_refused_and_dry_runs_write_nothing(narrow, tmp_path):
    code, printed, errors = migrate(narrow, tmp_path / "new", *WIDE[:2])
    assert code == 2
    assert "all rows of table 'items', which the new model does not have: --drop items" in errors
    assert "rows of variable 'hidden/kernel' that read table 'items'" in errors
    accepted = (*WIDE[:2], "--drop", "items", "--dry-run")
    code, printed, errors = migrate(narrow, tmp_path / "new", *accepted)
    assert code == 0, errors
    assert "10 of 14 rows kept, 20 new rows 0, 4 rows dropped" in printed
    assert "nothing is written (--dry-run)" in printed
    assert not (tmp_path / "new").exists()


def test_a_module_that_was_changed_in_its_place(narrow, tmp_path):
    """Layouts are those of the module as it was, which the user names where no job does."""
    zoo = tmp_path / "zoo"
    shutil.copytree(ZOO, zoo)
    (zoo / "kept.py").write_text((zoo / "narrow.py").read_text())
    text = (zoo / "narrow.py").read_text()
    (zoo / "narrow.py").write_text(text.replace("dim=8", "dim=12"))
    given = ("--model-zoo", zoo, "--model-def", "narrow.custom_model", "--dry-run")
    source = tmp_path / "elsewhere"
    shutil.copytree(narrow / "checkpoints", source)
    code, _, errors = migrate(source, tmp_path / "new", *given)
    assert code == 2
    assert "its module is not known: name it with --source-model-def" in errors
    code, printed, errors = migrate(
        source, tmp_path / "new", *given, "--source-model-def", "kept.custom_model"
    )
    assert code == 0, errors
    assert "14 of 14 rows kept, 4 new rows 0" in printed
    code, _, errors = migrate(
        source, tmp_path / "new", *given, "--source-model-def", "narrow.custom_model"
    )
    assert code == 2
    assert (
        "has changed since: hidden/kernel is (14, 8) in the checkpoint and (18, 8) in it" in errors
    )
