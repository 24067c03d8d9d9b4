"""Under the sanitizers the tests must run on the sanitized build, not on another."""

import os

from shoal.native import rowstore

if "SHOAL_SANITIZED" in os.environ:
    assert "sanitize" in rowstore.__file__, rowstore.__file__
