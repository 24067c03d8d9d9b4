"""`shoal train --yaml`: the objects of a job in files, for kubectl apply."""

from __future__ import annotations

from pathlib import Path

import yaml

from shoal.client.run.remote import warnings_of
from shoal.cluster import manifests
from shoal.cluster.templates import read_templates
from shoal.config.job import JobConfig
from shoal.errors import UserError


def write_yaml(config: JobConfig, path: str) -> list[str]:
    """Write the objects of the job to a file; returns warnings.

    There is no secret in it: the job's master makes the certificates. It may be applied again.

    Raises UserError.
    """
    config = config.resolved()
    templates = read_templates(config.pod_template)
    job = (
        manifests.config_map(config, templates),
        manifests.service(config.job_name),
        # Without a cluster to ask: probes that every version knows.
        manifests.master_job(config, templates, grpc_probes=False, applied=True),
    )
    for manifest in job:
        if config.namespace:
            manifest["metadata"]["namespace"] = config.namespace
    try:
        Path(path).write_text(yaml.dump_all(job, Dumper=_Readable, sort_keys=False))
    except OSError as error:
        raise UserError(f"--yaml: {path} cannot be written: {error.strerror}") from error
    return warnings_of(config)


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
