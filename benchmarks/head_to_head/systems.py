"""The peers, and the environments in which they run."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENTS = Path("build/peers")
TF_KERAS = Path("build/bench/tf_keras")
"""Where `make build/bench/tf_keras/installed` installs what ParameterServerStrategy needs."""


@dataclass(frozen=True)
class System:
    """A peer: the script below peers/ with its first arguments, and its environment.

    environment: the name of a file of requirements/, "" for the environment of shoal itself.
    kind: "server" for a parameter server with a worker, "process" for one process. blind: it tells
    the end of the warm-up and of the pass, and nothing between.
    """

    name: str
    script: str
    kind: str
    environment: str = ""
    arguments: tuple[str, ...] = ()
    blind: bool = False

    def command(self) -> list[str]:
        """The command without the driver's arguments."""
        return [str(self.python()), str(HERE / "peers" / self.script), *self.arguments]

    def python(self) -> Path:
        """The interpreter of the environment, absolute but not resolved."""
        if not self.environment:
            return Path(sys.executable)
        return ENVIRONMENTS.absolute() / self.environment / "bin" / "python"

    def variables(self) -> dict[str, str]:
        """Variables that its processes need beside this process's."""
        # Threads that wait by spinning are many times slower as soon as anything else uses a core.
        found = {"OMP_WAIT_POLICY": "passive"}
        if self.script == "tf_strategy.py":
            found["PYTHONPATH"] = str(TF_KERAS.absolute())
        return found


SYSTEMS = {
    each.name: each
    for each in (
        System("shoal", "shoal_job.py", "server", arguments=("tensorflow",)),
        System("shoal-torch", "shoal_job.py", "server", arguments=("torch",)),
        System("shoal-jax", "shoal_job.py", "server", arguments=("jax",)),
        System("tf-strategy", "tf_strategy.py", "server"),
        System("paddle", "paddle_server.py", "server", "paddle", blind=True),
        System("tfra", "tfra.py", "process", "tfra"),
        System("torchrec", "torchrec_cpu.py", "process", "torchrec"),
        System("pytorch", "pytorch.py", "process"),
        System("keras", "keras_fit.py", "process"),
    )
}


def install(environment: str) -> None:
    """Make an environment from requirements/, once, and again when they change.

    A file NAME-alone.txt beside NAME.txt has packages that are installed without what they say
    that they need. Raises CalledProcessError.
    """
    folder = ENVIRONMENTS / environment
    files = [HERE / "requirements" / f"{environment}{end}.txt" for end in ("", "-alone")]
    wanted = "\n".join(each.read_text() for each in files if each.exists())
    done = folder / "installed.txt"
    if done.exists() and done.read_text() == wanted:
        return
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
    for file, more in zip(files, ((), ("--no-deps",)), strict=True):
        if file.exists():
            command = [*pip, *more, "--requirement", file]
            subprocess.run(command, check=True, capture_output=True, text=True)
    done.write_text(wanted)
