"""The code and the commands in the pages of the documentation."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = "README.md"
GUIDE = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "guide").glob("*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"`(\w+\.(?:py|sql|yaml))`")

with_pages = pytest.mark.skipif(
    # tox tests the wheel, beside which there are no pages.
    not (ROOT / "docs").is_dir(),
    reason="the docs are not beside the tests",
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    file: the last file that the paragraph before it names; empty if it names none.
    """

    page: str
    line: int
    language: str
    text: str
    file: str

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The commands of a block of shell, each on one line; here-documents are one command."""
        text = re.sub(r"<<(\w+)\n.*?^\1$", "", self.text, flags=re.MULTILINE | re.DOTALL)
        found, words = [], ""
        for line in text.replace("\\\n", " ").replace(" && ", "\n").splitlines():
            words = f"{words}\n{line}" if words else line
            if words.count("'") % 2 == 0:  # else a quoted text goes on in the next line
                found.append(words.strip())
                words = ""
        return list(filter(None, found))

    @property
    def session(self) -> tuple[str, str]:
        """A block that begins with `$ `: its command, and what it prints."""
        assert self.text.startswith("$ ")
        command, _, printed = self.text[2:].replace("\\\n", " ").partition("\n")
        return command, printed


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in their order."""
    text = (ROOT / page).read_text()
    found, end = [], 0
    for match in FENCE.finditer(text):
        paragraph = text[end : match.start()].rstrip().rpartition("\n\n")[2]
        names = NAME.findall(paragraph) if paragraph.endswith(":") else []
        language, body = match.groups()
        line = text.count("\n", 0, match.start()) + 1
        named = names[-1] if names and language in ("python", "sql", "yaml") else ""
        found.append(Block(page, line, language, body, named))
        end = match.end()
    return found


def commands(page: str) -> list[tuple[str, str]]:
    """(place, command) of all commands of a page that can be typed as they are."""
    found = []
    for block in blocks(page):
        if block.language == "sh":
            found += [(block.place, command) for command in block.commands]
        elif block.text.startswith("$ "):
            found.append((block.place, block.session[0]))
    return found


def words(command: str) -> list[str]:
    """The words of a command, with the variables that the pages set."""
    return shlex.split(command.replace("$REGISTRY", "registry.example/shoal"))
