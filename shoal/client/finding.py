"""The search for a job by a folder or a name: on this machine, or else on Kubernetes.

Imports are late, where they are needed: gRPC and the library of Kubernetes are large.
"""

from __future__ import annotations

from typing import Any

from shoal.base.job_folder import JobFolder
from shoal.errors import UserError


def here(job: str, namespace: str) -> JobFolder | None:
    """The folder of a job of this machine; None if it is one on Kubernetes."""
    if namespace:
        return None
    from shoal.client.found import local_jobs

    return local_jobs.find(job)


def on_kubernetes(job: str, namespace: str) -> tuple[Any, Any]:
    """The commands of a cluster, and the job. Raises UserError if there is no cluster."""
    from shoal.cluster.configured import check_configured

    try:
        check_configured()
        from shoal.client.ask import cluster_jobs

        return cluster_jobs, cluster_jobs.handle_of(job, namespace)
    except UserError as error:
        if namespace:
            raise
        raise UserError(
            f"there is no job {job} on this machine, in ./shoal-jobs or at this path; and {error}"
        ) from error
