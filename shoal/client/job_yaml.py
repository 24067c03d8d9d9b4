"""`shoal train --yaml`: the objects of a job in files, for kubectl apply."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import yaml

from shoal.client.remote import identities_of, warnings_of
from shoal.cluster import certificates, manifests
from shoal.cluster.manifests import Manifest
from shoal.cluster.templates import read_templates
from shoal.config.job import JobConfig
from shoal.errors import UserError


def write_yaml(config: JobConfig, path: str) -> list[str]:
    """Write the objects of the job to a file; returns warnings.

    The Secrets with its certificates go to a file beside it (job-certificates.yaml for job.yaml),
    which only this user can read. With --insecure there are none.

    Raises UserError.
    """
    config = config.resolved()
    templates = read_templates(config.pod_template)
    job = (
        manifests.config_map(config, templates),
        manifests.service(config.job_name),
        # Without a cluster to ask: probes that every version knows.
        manifests.master_job(config, templates, grpc_probes=False),
    )
    labels = manifests.labels(config.job_name, "certificates")
    secrets = certificates.secrets(config.job_name, identities_of(config), labels)
    warnings = warnings_of(config)
    _write(path, config, job, 0o666)
    if secrets:
        beside = certificates_file(path)
        _write(str(beside), config, secrets, 0o600)
        warnings.append(
            f"the job's certificates and their keys are in {beside}: apply it too, and keep it "
            "secret"
        )
    return warnings


def certificates_file(path: str) -> Path:
    """The file for the Secrets of the job whose other objects go to `path`."""
    given = Path(path)
    return given.with_name(f"{given.stem}-certificates{given.suffix}")


def _write(path: str, config: JobConfig, objects: Sequence[Manifest], mode: int) -> None:
    """mode: of the file, as far as the umask allows it; one that is there gets no wider one."""
    for manifest in objects:
        if config.namespace:
            manifest["metadata"]["namespace"] = config.namespace
    text = yaml.dump_all(objects, Dumper=_Readable, sort_keys=False)

    def opener(name: str, flags: int) -> int:
        descriptor = os.open(name, flags, mode)
        if mode == 0o600:
            os.fchmod(descriptor, mode)  # of a file that was there
        return descriptor

    try:
        with open(path, "w", opener=opener) as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"--yaml: {path} cannot be written: {error.strerror}") from error


class _Readable(yaml.SafeDumper):
    """YAML as people write it: no anchors, and a text of several lines as such."""

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True

    def represent_text(self, text: str) -> yaml.Node:
        """A string."""
        style = "|" if "\n" in text else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Readable.add_representer(str, _Readable.represent_text)
