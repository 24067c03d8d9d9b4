"""The seconds of a measurement, as the courses that the tests play have them."""

import pytest


@pytest.fixture(autouse=True, scope="package")
def short_windows():
    """Jobs measure for 10 seconds of the time that the tests tell them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shoal.master.job.job.SCALE_SECONDS", 10.0)
        yield
