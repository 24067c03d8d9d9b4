"""JSON that has to fit into a place of bounded size, such as a ConfigMap."""

from __future__ import annotations

import json
from typing import Any

_CUT = "\n... (left out) ...\n"


def bounded(content: dict[str, Any], limit: int) -> tuple[dict[str, Any], list[str]]:
    """`content` in at most `limit` bytes of JSON, and a line for each part that was cut.

    The largest list or text, at any depth of mappings, is halved until all fits: of a list
    the last items are kept, of a text its beginning and its end. Raises ValueError if `limit`
    is too small for the rest. `content` itself is not changed.
    """
    content = json.loads(json.dumps(content))
    originals: dict[str, Any] = {}
    size = len(json.dumps(content))
    while size > limit:
        path, holder, key = _largest("", content)
        if holder is None:
            raise ValueError(f"{size} bytes do not fit into {limit}")
        originals.setdefault(path, holder[key])
        holder[key] = _halved(holder[key])
        before, size = size, len(json.dumps(content))
        if size >= before:
            raise ValueError(f"{size} bytes do not fit into {limit}")
    return content, [_line(path, value) for path, value in originals.items()]


def _largest(path: str, mapping: dict[str, Any]) -> tuple[str, dict[str, Any] | None, str]:
    """The largest list or text: its path, and what holds it under which key; None for none."""
    found: tuple[str, dict[str, Any] | None, str] = (path, None, "")
    largest = 0
    for key, value in mapping.items():
        at, holder, inner = f"{path}{key}", mapping, key
        if isinstance(value, dict):
            at, deeper, inner = _largest(f"{at}.", value)
            if deeper is None:
                continue
            holder = deeper
        elif not isinstance(value, (list, str)):
            continue
        if (size := len(json.dumps(holder[inner]))) > largest:
            largest, found = size, (at, holder, inner)
    return found


def _halved(value: list[Any] | str) -> list[Any] | str:
    if isinstance(value, list):
        return value[(len(value) + 1) // 2 :]
    text = value.replace(_CUT, "")
    quarter = len(text) // 4
    return text[:quarter] + _CUT + text[len(text) - quarter :]


def _line(path: str, original: list[Any] | str) -> str:
    unit = "items" if isinstance(original, list) else "characters"
    return f"not all of the {len(original)} {unit} of {path}"
