"""Images of a user's modules: the Dockerfile, and driving docker, podman or buildah."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from shoal.config.groups.kubernetes import MODEL_FOLDER
from shoal.errors import UserError

TOOLS = ("docker", "podman", "buildah")

_DIGEST_FILE = ("podman", "buildah")
"""Tools that write the digest of what they pushed; the others are asked for it."""

_DOCKERFILE = """\
# The image of the modules in this folder: shoal zoo build {folder} --image IMAGE
FROM {base}
COPY --chown=10001 . {target}/
# What the modules need beside shoal and TensorFlow stands in requirements.txt.
USER 0
RUN if [ -f {target}/requirements.txt ]; then \\
      pip install --no-cache-dir --requirement {target}/requirements.txt; fi
USER 10001
"""

_IGNORED = "Dockerfile\n.dockerignore\n.git\n**/__pycache__\nshoal-jobs\n"


def write_dockerfile(folder: Path, base: str) -> list[Path]:
    """Write a Dockerfile and a .dockerignore into the folder; returns what was written.

    Raises UserError if there is no such folder, no module in it, or a Dockerfile already.
    """
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    if not any(folder.rglob("*.py")):
        raise UserError(f"{folder} has no module (*.py)")
    path, ignored = folder / "Dockerfile", folder / ".dockerignore"
    if path.exists():
        raise UserError(f"there is a {path} already; remove it to have it written anew")
    path.write_text(_DOCKERFILE.format(folder=folder, base=base, target=MODEL_FOLDER))
    if not ignored.exists():
        ignored.write_text(_IGNORED)
    return [path, ignored]


def find_tool(wanted: str) -> str:
    """The program that builds images: `wanted`, or the first that is here.

    Raises UserError if there is none.
    """
    for tool in (wanted,) if wanted else TOOLS:
        if shutil.which(tool):
            return tool
    what = wanted or f"none of {', '.join(TOOLS)}"
    raise UserError(f"{what} is not installed; install one, or name another with --tool")


def build_image(folder: Path, image: str, tool: str) -> None:
    """Build the folder's Dockerfile as `image`. Raises UserError if that fails."""
    if not (folder / "Dockerfile").is_file():
        raise UserError(f"there is no {folder / 'Dockerfile'}; write one with: shoal zoo init")
    verb = "bud" if tool == "buildah" else "build"
    _run(tool, verb, "--tag", image, "--file", str(folder / "Dockerfile"), str(folder))


def push_image(image: str, tool: str) -> str:
    """Push `image` to its registry; returns it named by its digest, or "" if the tool tells none.

    Raises UserError if that fails.
    """
    repository = image.partition("@")[0]
    if ":" in repository.rpartition("/")[2]:
        repository = repository.rpartition(":")[0]
    if tool not in _DIGEST_FILE:
        _run(tool, "push", image)
        asked = [tool, "image", "inspect", "--format", '{{join .RepoDigests "\\n"}}', image]
        told = subprocess.run(asked, check=False, capture_output=True, text=True).stdout.split()
        return next((each for each in told if each.startswith(f"{repository}@sha256:")), "")
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        file = Path(folder, "digest")
        _run(tool, "push", "--digestfile", str(file), image)
        digest = file.read_text().strip() if file.is_file() else ""
    return f"{repository}@{digest}" if digest else ""


def _run(*command: str) -> None:
    # What the tool says goes to the terminal: it says more than we could.
    if code := subprocess.run(command, check=False).returncode:
        raise UserError(f"{' '.join(command)} ended with code {code}")
