"""Variables in URLs: `${NAME}` stands for the environment's value, where the URL is opened.

So a credential is in the environment of the processes that need it, and in no configuration,
log or file of the job. The values are taken out of errors and log lines of this process.
"""

from __future__ import annotations

import dataclasses
import os
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from shoal.config.flags import flag
from shoal.errors import VARIABLE, UserError, hide, without_credentials

_USER = re.compile(r"(?<=://)[^/?#@]*@")
_QUERY = re.compile(r"\?[^#]*")


@dataclass(frozen=True)
class Filled:
    """A URL with the values of its variables. values: by variable."""

    url: str
    values: dict[str, str]

    def filled(self, text: str) -> str:
        """`text` with the values of its variables."""
        return VARIABLE.sub(lambda found: self.values.get(found[1], found[0]), text)

    def unfilled(self, text: str) -> str:
        """`text` with the variables in place of their values, and without other credentials.

        The same in every process that fills the URL with the same values.
        """
        for name in sorted(self.values, key=lambda each: -len(self.values[each])):
            text = text.replace(self.values[name], f"${{{name}}}")
        return without_credentials(text)


def fill(url: str, named: str = "", *, quoted: bool = False) -> Filled:
    """The URL with the environment's values for its variables; a path stays as it is.

    named: begins errors: the flag, as far as it is known. quoted: quote the values in the user's
    part and in the query, for who takes such quotes out again.

    Raises UserError naming a variable that is not set.
    """
    if "://" not in url or not VARIABLE.search(url):
        return Filled(url, {})
    values: dict[str, str] = {}
    for name in VARIABLE.findall(url):
        # A Secret made from a file often ends in a line break, and no URL does.
        value = os.environ.get(name, "").rstrip("\r\n")
        if not value:
            raise UserError(
                f"{named}{': ' if named else ''}{url}: the environment variable {name} is not set; "
                "set it for the process that opens the URL (pods get theirs from "
                "--env-from-secret)"
            )
        values[name] = value
    hide(values.values())

    def filled(part: str, *, quoting: bool) -> str:
        def value_of(found: re.Match[str]) -> str:
            value = values[found[1]]
            return quote(value, safe="") if quoting else value

        return VARIABLE.sub(value_of, part)

    if quoted:
        for place in (_USER, _QUERY):
            url = place.sub(lambda found: filled(found[0], quoting=True), url, count=1)
    return Filled(filled(url, quoting=False), values)


def check_variables(config: Any) -> None:
    """Raise UserError naming flag and variable if one that a URL of the job names is not set.

    config: a dataclass of options.
    """
    for field in dataclasses.fields(config):
        if isinstance(value := getattr(config, field.name), str):
            fill(value, flag(field.name))
