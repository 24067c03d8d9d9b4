"""The search for a job by a folder or a name: on this machine, or else on Kubernetes.

Imports are late, where they are needed: a command is to answer at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.errors import UserError

if TYPE_CHECKING:
    from shoal.base.disk.job_folder import JobFolder
    from shoal.client.ask.cluster_jobs import ClusterJob
    from shoal.client.ask.running_job import RunningJob
    from shoal.config.job import JobConfig


def found(job: str, namespace: str) -> RunningJob:
    """The job of a folder or name here, or else on Kubernetes. Raises UserError if none can be."""
    from shoal.client.ask.local_jobs import LocalJob, find

    folder = None if namespace else find(job)
    return on_kubernetes(job, namespace) if folder is None else LocalJob(folder)


def job_of(config: JobConfig, folder: JobFolder) -> RunningJob:
    """The job of a configuration; its folder if it is one of this machine. Raises UserError."""
    if not config.image:
        from shoal.client.ask.local_jobs import LocalJob

        return LocalJob(folder)
    from shoal.client.ask.cluster_jobs import cluster_job

    return cluster_job(config.job_name, config.namespace)


def on_kubernetes(job: str, namespace: str) -> ClusterJob:
    """The job on Kubernetes. Raises UserError if there is no cluster."""
    from shoal.cluster.configured import check_configured

    try:
        check_configured()
        from shoal.client.ask.cluster_jobs import cluster_job

        return cluster_job(job, namespace)
    except UserError as error:
        if namespace:
            raise
        raise UserError(
            f"there is no job {job} on this machine, in ./shoal-jobs or at this path; and {error}"
        ) from error
