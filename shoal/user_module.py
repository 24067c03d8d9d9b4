"""What the user's module must define, by name, for whoever looks for it.

Imports nothing: the client looks at the module's text, a worker at the module itself.
"""

from __future__ import annotations

from collections.abc import Container

MODULE_FUNCTIONS = ("loss", "optimizer", "feed")
"""What the user's module must define beside the model."""


def missing_functions(defined: Container[str]) -> list[str]:
    """Those of `MODULE_FUNCTIONS` that are not `defined`; feed_batch serves in place of feed."""
    return [
        name
        for name in MODULE_FUNCTIONS
        if name not in defined and not (name == "feed" and "feed_batch" in defined)
    ]
