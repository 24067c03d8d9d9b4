"""The tables of docs/guide/kubernetes-rights.md are the Roles of deploy/base/rbac.yaml."""

import re

import pytest

from tests.docs.roles import ROOT, granted

ROW = re.compile(r"^\| ([a-z/]+) \| ([a-z]+) \| (.+) \|$", re.MULTILINE)


# tox tests the wheel, beside which there is no docs folder.
@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="the docs are not beside the tests")
def test_every_right_is_explained_and_no_other():
    text = (ROOT / "docs/guide/kubernetes-rights.md").read_text()
    sections = dict(re.findall(r"^## The Role `([a-z-]+)`(.*?)(?=^## |\Z)", text, re.M | re.S))
    assert sorted(sections) == ["shoal", "shoal-user"]
    for role, section in sections.items():
        explained = sorted((r, v) for r, v, _ in ROW.findall(section) if r != "resource")
        assert explained == granted(role)
