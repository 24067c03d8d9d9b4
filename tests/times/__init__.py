"""Where the tests' time goes: `make test-times`."""
