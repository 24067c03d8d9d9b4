"""Results and audits that are too large for a ConfigMap."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.master.cluster.bounded import bounded
from shoal.master.in_cluster import AUDIT_BYTES, RESULT_BYTES, published
from shoal.result import JobResult

pytestmark = pytest.mark.slow

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=100,
)


@given(st.dictionaries(st.text(max_size=5), JSON), st.integers(100, 5000))
def test_what_comes_out_fits_and_what_is_missing_is_told(content, limit):
    before = json.dumps(content)
    try:
        cut, lacks = bounded(content, limit)
    except ValueError:  # of small parts alone there may be too many
        return
    assert json.dumps(content) == before
    assert len(json.dumps(cut)) <= limit
    assert (cut == content) == (not lacks)
    assert (len(before) <= limit) == (not lacks)


def result(**changes):
    """A result.json as of a long job."""
    values = {
        "job_name": "long",
        "command": "train",
        "state": "succeeded",
        "metrics": {"auc": 0.75},
        "evaluations": [],
        "ledger": {"total": 10, "trained_once": 10, "repeated": 0, "failed": 0, "pending": 0},
        "bad_records": [],
        "messages": ["12:00:00: it began"],
        "failure": None,
    }
    return values | changes


@pytest.mark.parametrize(
    "changes",
    [
        {
            "evaluations": [
                {"version": v, "epoch": 0, "records": 9, "metrics": {"auc": 0.5}}
                for v in range(20_000)
            ]
        },
        {"bad_records": [{"record": r, "error": "no\u00ef number " * 9} for r in range(20_000)]},
        {
            "state": "failed",
            "failure": {"kind": "X", "message": "m", "traceback": "Traceback: \u00ef\n" * 200_000},
        },
        {"messages": ["x" * 3_000_000]},
    ],
)
def test_a_large_result_is_published_without_what_does_not_fit(tmp_path, changes):
    """More than a MiB would be refused, and with it the whole result."""
    whole = result(**changes)
    audit = {"report": {"deaths": [{"who": "ps-0"}] * 100_000}, "text": "line\n" * 400_000}
    data = published(json.dumps(whole), json.dumps(audit), "/data/jobs/long")
    text, audit_text = data["result.json"], data["audit.json"]
    assert len(text.encode()) <= RESULT_BYTES
    assert len(audit_text.encode()) <= AUDIT_BYTES
    read = JobResult.from_json(text, tmp_path)
    assert read.state == whole["state"]
    assert read.ledger == whole["ledger"]
    assert "not all of the " in read.messages[-1]
    assert next(iter(changes.keys() - {"state"})) in read.messages[-1]
    assert "/data/jobs/long/result.json" in read.messages[-1]
    assert "not all of the 100000 items of report.deaths" in json.loads(audit_text)["text"]


def test_a_small_result_is_published_as_it_is():
    text, audit = json.dumps(result(), indent=2), json.dumps({"report": {}, "text": "clean"})
    assert published(text, audit, "/j") == {"result.json": text, "audit.json": audit}
    assert published(text, None, "/j") == {"result.json": text}


def test_a_result_that_fits_without_its_spaces_is_published_whole():
    whole = result(evaluations=[{"version": v} for v in range(20_000)])
    text = json.dumps(whole, indent=8)
    assert len(text) > RESULT_BYTES
    assert json.loads(published(text, None, "/j")["result.json"]) == whole
