"""`shoal.check`, in the form of the functions of `shoal.api`: it looks, and starts no job."""

from __future__ import annotations

from typing import Any

from shoal.api.calls import checking
from shoal.client.run.inspection import CheckReport
from shoal.config.signatures import documented


@documented("check")
def check(**arguments: Any) -> CheckReport:
    """Look at a model and its data without a job: what would live where, what is unsupported.

    Takes the arguments of `train`, so that a call of that can be checked. Those that are about the
    processes of a job, its files or its course are checked as values only.

    With training_data, one batch is read, trained and evaluated, and with validation_data one more
    is evaluated. The report tells it when it is shown or printed, and is true if nothing is at
    fault. Raises UserError for what is found before the model is built.
    """
    return checking(arguments)
