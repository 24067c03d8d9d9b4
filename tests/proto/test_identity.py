"""The names in certificates, and which of them are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.proto.identity import ROLES, Caller, caller_of, host_of, named


@given(st.text("0123456789abcdef", min_size=1), st.sampled_from(ROLES), st.integers(0, 1 << 40))
def test_a_name_is_read_back(job, role, index):
    caller = Caller(job, role, index)
    assert named(caller.uri) == caller
    context = {
        "transport_security_type": [b"ssl"],
        "x509_subject_alternative_name": [caller.host.encode(), caller.uri.encode()],
    }
    assert caller_of(context) == caller
    assert caller.host == host_of(f"{role}-{index}", job)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "shoal://",
        "shoal://job/ps",
        "shoal://job/ps/",
        "shoal://job/ps/-1",
        "shoal://job/ps/1/2",
        "shoal://job/ps/\u0661",
        "shoal://job/king/0",
        "shoal:///ps/0",
        "https://job/ps/0",
        " shoal://job/ps/0",
    ],
)
def test_other_names_are_nobodys(uri):
    assert named(uri) is None


@given(st.text())
def test_no_text_breaks_the_reading_of_names(text):
    assert named(text) is None or named(text).uri == text or text.rpartition("/")[2].startswith("0")


def test_without_tls_a_name_is_nobodys():
    names = {"x509_subject_alternative_name": [b"shoal://job/ps/0"]}
    assert caller_of(names) is None
    assert caller_of({**names, "transport_security_type": [b"insecure"]}) is None
    assert caller_of({}) is None
