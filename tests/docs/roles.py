"""The rights that the Roles of deploy/base grant."""

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def granted(role):
    documents = yaml.safe_load_all((ROOT / "deploy/base/rbac.yaml").read_text())
    (found,) = (d for d in documents if (d["kind"], d["metadata"]["name"]) == ("Role", role))
    return sorted(
        (resource, verb)
        for rule in found["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )
