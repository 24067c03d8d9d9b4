"""Writes down the wall and CPU seconds of each test (pytest -p tests.times.plugin)."""

import json
import os
import time
from pathlib import Path

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    wall, cpu = time.monotonic(), time.process_time()
    try:
        return (yield)
    finally:
        told = {
            "test": item.nodeid,
            "wall": time.monotonic() - wall,
            "cpu": time.process_time() - cpu,
        }
        with (Path(os.environ["SHOAL_TEST_TIMES"]) / f"tests-{os.getpid()}").open("a") as file:
            file.write(json.dumps(told) + "\n")
