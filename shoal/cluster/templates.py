"""The user's Pod template: reading the file, and merging it under what shoal sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from shoal.config.groups.kubernetes import ROLES
from shoal.errors import UserError, holds_secret

Manifest = dict[str, Any]

_KEYS = ("name", "mountPath")
"""What tells the items of Kubernetes's lists apart; the first that an item has."""


def read_templates(path: str) -> dict[str, Manifest]:
    """The templates of a --pod-template file by role; empty for no path.

    Raises UserError if it cannot be read or holds something else.
    """
    if not path:
        return {}
    try:
        content = yaml.safe_load(Path(path).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"--pod-template: {path} cannot be read: {error}") from error
    if not isinstance(content, dict) or not content:
        raise UserError(f"--pod-template: {path} holds no Pod template")
    if "spec" in content or "metadata" in content:
        content = dict.fromkeys(ROLES, content)
    for role, template in content.items():
        if role not in ROLES:
            raise UserError(
                f"--pod-template: {path} has the key {role!r}; at the top stand metadata and "
                f"spec, or {', '.join(ROLES)}"
            )
        spec = (template or {}).get("spec") if isinstance(template, dict) else None
        if not isinstance(template, dict) or not isinstance(spec or {}, dict):
            raise UserError(f"--pod-template: {path}: {role} is not a Pod template")
        containers = (spec or {}).get("containers") or []
        if not isinstance(containers, list) or not all(isinstance(c, dict) for c in containers):
            raise UserError(f"--pod-template: {path}: {role}: spec.containers is not a list")
        if (text := _secret_in(template)) is not None:
            raise UserError(
                f"--pod-template: {path}: {role}: {text} holds a password, key or signature, which "
                "all could read who may read the job's pods: take it from a Secret, with "
                "--env-from-secret or secretKeyRef"
            )
    return content


def _secret_in(part: Any) -> str | None:
    """The first text in a template that is a URL with a credential."""
    if isinstance(part, str):
        return part if holds_secret(part) else None
    parts = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return next((text for each in parts if (text := _secret_in(each)) is not None), None)


def merged(template: Manifest, metadata: Manifest, spec: Manifest) -> tuple[Manifest, Manifest]:
    """Metadata and spec of a pod: the template's, with ours before them.

    The template's first container stands under ours, whatever its name; further ones
    run beside it.
    """
    theirs = dict(template.get("spec") or {})
    containers = [dict(container) for container in theirs.get("containers") or []]
    if containers:
        containers[0]["name"] = spec["containers"][0]["name"]
        theirs["containers"] = containers
    allowed = {
        key: value
        for key, value in (template.get("metadata") or {}).items()
        if key in ("labels", "annotations")
    }
    return _merge(allowed, metadata), _merge(theirs, spec)


def _merge(under: Any, over: Any) -> Any:
    if isinstance(under, dict) and isinstance(over, dict):
        both = under.keys() & over.keys()
        return {**under, **over, **{key: _merge(under[key], over[key]) for key in both}}
    if isinstance(under, list) and isinstance(over, list):
        return _merge_lists(under, over)
    return over


def _merge_lists(under: list[Any], over: list[Any]) -> list[Any]:
    kept = list(over)
    for item in under:
        key = next((k for k in _KEYS if isinstance(item, dict) and k in item), None)
        places = [
            place
            for place, ours in enumerate(over)
            if key is not None and isinstance(ours, dict) and ours.get(key) == item[key]
        ]
        if places:
            kept[places[0]] = _merge(item, over[places[0]])
        elif item not in kept:
            kept.append(item)
    return kept
