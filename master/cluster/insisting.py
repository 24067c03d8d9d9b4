"""Calls to the Kubernetes API that a master cannot do without."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from kubernetes.client.exceptions import ApiException

from shoal.cluster.api import UNREACHABLE, is_final, message_of
from shoal.errors import UserError
from shoal.proto.wire.backoff import backoff_seconds

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 300.0
"""For the API to take a change: an upgrade of a control plane takes minutes."""

_NO_RIGHT = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


def insist(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call the API until it answers.

    Raises UserError if it refuses, OSError if it cannot be reached for minutes.
    """
    give_up = time.monotonic() + PATIENCE_SECONDS
    attempt = 0
    while True:
        attempt += 1
        try:
            return call(*arguments)
        except ApiException as error:
            if is_final(error):
                raise UserError(refusal(error)) from error
            why = message_of(error)
        except UNREACHABLE as error:
            why = message_of(error)
        if time.monotonic() > give_up:
            raise OSError(f"the Kubernetes API did not answer: {why}")
        logger.warning("the Kubernetes API is asked again: %s", why)
        time.sleep(backoff_seconds(attempt))


def refusal(error: ApiException) -> str:
    """The reason why the API server refuses the master, and the remedy."""
    said = f"the Kubernetes API refuses the master: {message_of(error)}"
    if error.status in _NO_RIGHT:
        return f"{said}. Its service account needs the Role shoal of deploy/base"
    return said
