"""Wrong inputs that a worker finds: one message, the right exit code, and nothing is left."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.jobs.running import run
from tests.wrong.data import LATE, csv
from tests.wrong.modules import LATE as LATE_MODULES
from tests.wrong.modules import MODULE, RAISE

pytestmark = pytest.mark.job

CASES = {
    "lists of lists": (MODULE, *LATE["lists of lists"], ""),
    "text among numbers": (MODULE, *LATE["text among numbers"], ""),
    **{
        name: (text, csv(), words, "")
        for name, (text, words) in LATE_MODULES.items()
        if name in ("feed takes two", "no loss", "a loss without gradient", "feed reads")
    },
    **{
        name: (text, csv(), words, line)
        for name, (text, words, line) in RAISE.items()
        if name in ("a missing package", "a loss that raises")
    },
}
"""By name: the module, what writes the data, words of the message, a line of the user's."""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """What came of the job of each case, and its folder."""

    def one(name):
        text, write, *_ = CASES[name]
        folder = tmp_path_factory.mktemp("wrong")
        (folder / "model.py").write_text(text)
        fields = {"model_zoo": folder, "model_def": "model.custom_model"}
        fields |= {"training_data": write(folder), "output": folder / "out"}
        return run("train", folder, "job", **fields), folder

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(CASES, pool.map(one, CASES), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_a_worker_s_finding_is_one_message(ended, name):
    job, folder = ended[name]
    _, _, words, own = CASES[name]
    *lines, message = job.err.splitlines()
    assert message.startswith("Error: ")
    assert re.search(words, message), message
    assert job.code == (1 if own else 2), job.err
    if own:
        assert lines[0] == "Your code, the last call last:"
        assert any(own in line for line in lines)
        assert not any("site-packages" in line for line in lines)
    else:
        assert lines == []
    assert "Traceback" not in job.out + job.err
    assert (job.result["state"], job.ledger["trained_once"]) == ("failed", 0)
    # The job's folder has its logs; the next job of the name takes its place.
    assert not (folder / "out").exists()
