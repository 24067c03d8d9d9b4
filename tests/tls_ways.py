"""TLS in C and that of Python's ssl, for tests that are to hold for both."""

import pytest

from shoal.proto.plane import hello

KINDS = {"c": hello._in_c, "python": hello._by_python}
PAIRS = [("c", "c"), ("python", "python"), ("c", "python"), ("python", "c")]
"""Of who serves, and of who calls."""


def either(serves, calls):
    """What is to be in place of hello._in_c, so that each end has its kind."""

    def encrypted(made, identity, host):
        return KINDS[serves if host is None else calls](made, identity, host)

    return encrypted


def both_tls(count=2):
    """Marks: tests run with either kind of TLS at both ends, and with count=4 also mixed."""
    pairs = PAIRS[:count]
    ids = ["-".join(each) for each in pairs]
    return [
        pytest.mark.usefixtures("tls_pair"),
        pytest.mark.parametrize("tls_pair", pairs, ids=ids, indirect=True),
    ]
