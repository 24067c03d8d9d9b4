"""Builds deploy/Dockerfile with buildah, and gives it to the one-node cluster.

    python tests/kubernetes/image.py ../shared/kube

The base image is made of this machine's own Debian packages, as there is no registry to
take python:3.11-slim from. What this environment has is mounted at PACKAGES_MOUNT, in the build
and in the tests' pods: pip finds the dependencies there, and nobody waits until gigabytes
are copied. They need not be of the versions in deploy/locks, for which pip would then ask a
registry: the image is built with LOCKED=no, and tests/cluster/test_locks.py tests the locks.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMAGE = "docker.io/local/shoal:test"
BASE = "localhost/shoal-test-base"
PACKAGES_MOUNT = "/packages"
PACKAGES = ("bash", "dash", "coreutils", "passwd", "grep", "sed", "findutils", "tar", "gcc")
PYTHON = ("python3", "python3-venv", "python3-dev", "ca-certificates")

ENVIRONMENT = {
    **os.environ,
    "STORAGE_DRIVER": os.environ.get("STORAGE_DRIVER", "overlay"),
    "BUILDAH_ISOLATION": "chroot",
}


def run(*command: str | Path, **options: object) -> str:
    """Run a command and return its output; its errors go to ours."""
    done = subprocess.run(
        [str(word) for word in command],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        **options,  # type: ignore[call-overload]
    )
    return str(done.stdout).strip()


def installed_files() -> list[str]:
    """Files of the packages that the base image needs, and of what they depend on."""
    depends = run("dpkg-query", "-W", "-f", "${Package}|${Depends}, ${Pre-Depends}\n")
    needs: dict[str, list[str]] = {}
    for line in depends.splitlines():
        name, _, text = line.partition("|")
        needs[name] = re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]*)", text)
    wanted, left = set(), [*PACKAGES, *PYTHON]
    while left:
        name = left.pop()
        if name in needs and name not in wanted:
            wanted.add(name)
            left += needs[name]
    missing = {*PACKAGES, *PYTHON} - wanted | ({"buildah"} if "buildah" not in needs else set())
    if missing:
        names = " ".join(sorted(missing))
        sys.exit(f"Debian packages are missing here: apt-get install {names}")
    files = set(run("dpkg-query", "-L", *sorted(wanted)).splitlines())
    kept = [f for f in files if f.startswith("/") and not f.startswith(("/usr/share/doc", "/."))]
    return sorted(f for f in kept if os.path.lexists(f))


def make_base() -> None:
    """The image that stands for python:3.11-slim, with gcc."""
    files = installed_files()
    container = run("buildah", "from", "scratch")
    root = Path(run("buildah", "mount", container))
    for link in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if Path("/", link).is_symlink():
            (root / "usr" / link).mkdir(parents=True, exist_ok=True)
            (root / link).symlink_to(f"usr/{link}")
    names = [f for f in files if not (os.path.isdir(f) and not os.path.islink(f))]
    # Merged /usr: a package may say /bin/bash for what is /usr/bin/bash.
    names = [os.path.join(os.path.realpath(os.path.dirname(f)), os.path.basename(f)) for f in names]
    listing = "".join(f"{name.lstrip('/')}\0" for name in sorted(set(names)))
    copy = f"tar -C / --null --files-from=- -cf - | tar -C {root} -xf -"
    subprocess.run(["bash", "-o", "pipefail", "-c", copy], input=listing, text=True, check=True)
    for name in ("passwd", "group", "shadow", "login.defs", "ld.so.conf", "ld.so.cache"):
        if Path("/etc", name).exists():
            subprocess.run(["cp", "-a", f"/etc/{name}", root / "etc"], check=True)
    subprocess.run(["cp", "-a", "/etc/ld.so.conf.d", "/etc/alternatives", root / "etc"], check=True)
    for folder in ("tmp", "var/tmp", "root", "home", "proc", "sys", "dev", "run"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    (root / "var/tmp").chmod(0o1777)
    run("buildah", "umount", container)
    run("buildah", "commit", "--quiet", "--rm", container, BASE)


def pip_options() -> list[str]:
    """What pip needs here, bound into the build and not part of the image."""
    options = []
    for path in ("/etc/pip.conf", Path.home() / ".config" / "pip", *pip_folders()):
        if Path(path).exists():
            inside = "/root/.config/pip" if str(path).endswith(".config/pip") else path
            options += ["-v", f"{path}:{inside}:ro"]
    for variable in ("PIP_CERT", "SSL_CERT_FILE"):
        if value := os.environ.get(variable):
            options += ["-v", f"{value}:{value}:ro", "--env", f"{variable}={value}"]
    return options


def pip_folders() -> list[str]:
    """Folders of this machine that pip is told to take packages from."""
    text = run(sys.executable, "-m", "pip", "config", "list")
    # An index refers to files beside it, so what is above it is needed too.
    found = {"/" + path.strip("/") for path in re.findall(r"/[\w./-]+", text)}
    return sorted({"/".join(path.split("/")[:3]) for path in found if Path(path).is_dir()})


def packages() -> Path:
    """The folder of this environment's packages."""
    return Path(importlib.metadata.distribution("kubernetes").locate_file("")).resolve()


def build(kube: Path) -> None:
    """Build the image and import it into the cluster's node."""
    make_base()
    common = ["--pull-never", "--network", "host", "--layers", *pip_options()]
    common += ["-v", f"{packages()}:{PACKAGES_MOUNT}:ro", "--env", f"PYTHONPATH={PACKAGES_MOUNT}"]
    arguments = ["--build-arg", f"BASE={BASE}", "--build-arg", "LOCKED=no"]
    run(
        "buildah", "bud", *common, *arguments, "-t", IMAGE, "-f", "deploy/Dockerfile", ".", cwd=ROOT
    )
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "shoal.tar"
        run("buildah", "push", "--quiet", IMAGE, f"docker-archive:{archive}:{IMAGE}")
        run(kube / "load-image", archive)


def hold(name: str, image: str, command: list[str]) -> None:
    """Run a pod with an image that the tests' pods need, as long as the cluster lives.

    A kubelet whose disk is fuller than 85% removes images that no container uses, and no registry
    would give them back. image: a part of its name. command: empty for the image's own.
    """
    names = "jsonpath={.items[*].status.images[*].names[*]}"
    give_up = time.monotonic() + 60.0
    while True:
        here = run("kubectl", "get", "nodes", "-o", names).split()
        if found := [each for each in here if image in each]:
            break
        if time.monotonic() > give_up:
            sys.exit(f"the node does not say that it has {image}, but {here}")
        time.sleep(1.0)
    container = {"name": name, "image": found[0], "imagePullPolicy": "Never", "command": command}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container]},
    }
    run("kubectl", "apply", "-f", "-", input=json.dumps(pod))
    run("kubectl", "wait", "--for=condition=Ready", "--timeout=300s", f"pod/{name}")


if __name__ == "__main__":
    # What every pod begins with; the kubelet does not know its name on this cluster.
    hold("first-image", "/pause:", [])
    build(Path(sys.argv[1]).resolve())
    hold("shoal-image", IMAGE, ["sleep", "infinity"])
