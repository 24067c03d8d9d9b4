"""Make a process that serves speak TLS 1.3 only.

Imported before gRPC, which looks only once. gRPC's Python library cannot be told a least version.
But the environment variable names the ciphers of TLS 1.2, and those of 1.3 are fixed: with none but
RSA's, a server whose key is of another kind finds no cipher in 1.2. One handshake has one version,
so callers need nothing of the kind.
"""

import os

VARIABLE = "GRPC_SSL_CIPHER_SUITES"

_BEFORE: str | None = None


def read_environment() -> None:
    """Keep the user's own value, and set ours in its place."""
    global _BEFORE
    _BEFORE = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384"


def as_before(environment: dict[str, str]) -> None:
    """Give a child's environment the user's own value: what it calls is not ours to limit."""
    environment.pop(VARIABLE, None)
    if _BEFORE is not None:
        environment[VARIABLE] = _BEFORE


read_environment()
