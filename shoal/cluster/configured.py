"""The check for a Kubernetes cluster that is set up here, without the library of Kubernetes."""

from __future__ import annotations

import os

from shoal.errors import UserError

_DEFAULT = "~/.kube/config"


class NoClusterError(UserError):
    """No cluster is set up here."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"no Kubernetes cluster is set up: {why}. Set KUBECONFIG, or make a context, so that "
            "`kubectl get pods` works"
        )


def check_configured() -> None:
    """Raises NoClusterError if there is no file with a context that kubectl would use."""
    given = os.environ.get("KUBECONFIG", _DEFAULT)
    paths = [os.path.expanduser(path) for path in given.split(os.pathsep) if path]
    if not any(os.path.exists(path) for path in paths):
        raise NoClusterError(f"there is no file {given}")
