"""The certificates of a job in a cluster, which the first master of its Job makes.

It makes an authority for the job, and with it a certificate for every process and for commands;
then it forgets the authority's key. Secrets that belong to the Job keep the certificates. The
master may create Secrets, and not read them: its pod mounts its own, which a master that is
started again finds there.
"""

from __future__ import annotations

import logging
import time
from http import HTTPStatus
from pathlib import Path

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from shoal.cluster import certificates, manifests
from shoal.cluster.api import CALL_SECONDS
from shoal.config.job import JobConfig
from shoal.master.cluster.insisting import insist
from shoal.proto.identity import MASTER, POD_FOLDER, Caller, Identity

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5

PATIENCE_SECONDS = 180.0
"""For the Secret of an earlier Job to be removed after it, or for the kubelet to show this Job's:
it looks each minute."""


class JobCertificates:
    """The certificates of the job in `config`. folder: where the master's own are mounted."""

    def __init__(
        self,
        api: client.ApiClient,
        namespace: str,
        config: JobConfig,
        job_uid: str,
        folder: Path = Path(POD_FOLDER),
    ) -> None:
        self._core, self._namespace, self._config = client.CoreV1Api(api), namespace, config
        self._job_uid, self._folder = job_uid, folder

    def prepared(self) -> Identity | None:
        """The master's identity, once all processes of the job have theirs; None with --tls=never.

        Only the job's one master calls this. Raises UserError if the API server refuses the
        Secrets; OSError if another Secret is in the way of the master's.
        """
        if self._config.insecure:
            return None
        return self._mounted() or self._made()

    def _mounted(self) -> Identity | None:
        """The identity that an earlier master of this Job made; None if there is none."""
        try:
            # Written last into the folder by whom it is: the other files are there, too.
            if (self._folder / certificates.JOB_UID_FILE).read_text() != self._job_uid:
                return None
        except FileNotFoundError:
            return None
        return Identity.load(self._folder, Caller(self._config.job_id, MASTER, 0))

    def _made(self) -> Identity:
        """A new identity, of a new authority.

        The Secret of the master comes last: if it is there, all are. Secrets left by a master that
        was killed before are of another authority, and go with the Job.
        """
        from shoal.security.authority import Authority, issued  # late: only the first master has to

        config = self._config
        workers = certificates.certified_workers(config) or config.num_workers
        servers = certificates.certified_servers(config) or config.num_servers
        own, *others = issued(Authority.made(config.job_id), servers, workers)
        assert own.caller.role == MASTER
        metadata = {
            "labels": manifests.labels(config.job_name, "certificates"),
            "ownerReferences": manifests.owner(config.job_name, self._job_uid),
        }
        for secret in certificates.secrets(config.job_name, others, metadata):
            insist(self._create, secret)
        (secret,) = certificates.secrets(config.job_name, [own], metadata)
        secret["stringData"][certificates.JOB_UID_FILE] = self._job_uid
        give_up = time.monotonic() + PATIENCE_SECONDS
        name = secret["metadata"]["name"]
        while not insist(self._create, secret):
            if (found := self._mounted()) is not None:
                return found
            if time.monotonic() > give_up:
                raise OSError(
                    f"namespace {self._namespace} has a Secret {name} of another job, perhaps of "
                    f"an earlier version of shoal; remove it: kubectl delete secret {name} "
                    f"--namespace {self._namespace}"
                )
            logger.info("the Secret %s of an earlier master or Job is waited for", name)
            time.sleep(POLL_SECONDS)
        return own

    def _create(self, secret: manifests.Manifest) -> bool:
        """Create a Secret; returns False if it is there already."""
        options = {"_request_timeout": CALL_SECONDS}
        try:
            self._core.create_namespaced_secret(self._namespace, secret, **options)
        except ApiException as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            return False
        return True
