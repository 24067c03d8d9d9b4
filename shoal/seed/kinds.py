"""Kinds of seeds: the processes that each forks, and the modules that it imports for them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

SERVING = "serving"
TRAINING = "training"
"""With TensorFlow; the kinds with other frameworks have the engine's name behind it."""

BACKENDS = {
    TRAINING: "tensorflow",
    f"{TRAINING}-jax": "jax",
    f"{TRAINING}-torch": "torch",
}
"""The kinds that import a framework, with the backend of Keras that they have."""

IMPORTS = {
    SERVING: ("shoal.master.__main__", "shoal.ps.__main__"),
    TRAINING: (
        "shoal.worker.__main__",
        "tensorflow",
        "keras",
        "shoal.worker.loop",
        "shoal.worker.engines.tensorflow.engine",
    ),
    f"{TRAINING}-jax": (
        "shoal.worker.__main__",
        "jax",
        "keras",
        "shoal.worker.loop",
        "shoal.worker.engines.jax.engine",
    ),
    f"{TRAINING}-torch": (
        "shoal.worker.__main__",
        "torch",
        "shoal.worker.loop",
        "shoal.worker.engines.torch.engine",
    ),
}
"""Modules by the kind of seed, without which it forks nothing."""

LATER = {
    SERVING: (
        "shoal.checkpoints.formats.schema",
        "shoal.checkpoints.formats.arrow",
        "shoal.ps.saved.restoring",
    ),
    **dict.fromkeys(BACKENDS, ()),
}
"""Modules that it imports when nobody asks it: their processes need them after their start."""

KINDS = {
    "shoal.master": SERVING,
    "shoal.master.journal.audit": SERVING,
    "shoal.ps": SERVING,
    "shoal.worker": TRAINING,
    "shoal.worker.inspect.check": TRAINING,
    "shoal.worker.inspect.describe_saved": TRAINING,
    "shoal.worker.inspect.export_saved": TRAINING,
    "shoal.worker.inspect.plan": TRAINING,
}
"""The kind of seed by the module that a process runs."""

OWN = frozenset(
    {
        "COLUMNS",
        "GRPC_SSL_CIPHER_SUITES",
        "LINES",
        "OLDPWD",
        "PWD",
        "PYTHONUNBUFFERED",
        "SHLVL",
        "SHOAL_FAULTS",
        "SHOAL_PROCESS",
        "SHOAL_SEED",
        "TMPDIR",
        "_",
    }
)
"""Variables that a forked process may have of its own: of the modules that a seed imports,
READ_AGAIN alone keep what they read of them then."""

READ_AGAIN = ("shoal.proto.faults", "shoal.proto.wire.tls13")
"""Modules whose `read_environment` a forked process calls."""

DEFAULTS = {"TF_CPP_MIN_LOG_LEVEL": "2"}
"""Variables of workers that the user has not set: TensorFlow's notes on processors are no news."""

OWN_PREFIXES = ("PYTEST_", "SHOAL_TEST_")
"""Of such variables of those who run tests."""


def kind_of(arguments: Sequence[str]) -> str | None:
    """The kind of seed for Python's arguments (`-m MODULE ...`); None if there is none.

    One that has a framework is of the engine of the job.json that `--config` names.
    """
    kind = KINDS.get(arguments[1]) if len(arguments) > 1 and arguments[0] == "-m" else None
    if kind != TRAINING or "--config" not in arguments[:-1]:
        return kind
    return training_kind(Path(arguments[arguments.index("--config") + 1]))


def training_kind(config: Path) -> str:
    """The kind of seed for the workers of the job of a job.json; TRAINING if it does not tell."""
    engine = ""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        engine = json.loads(config.read_bytes()).get("engine", "")
    return next((kind for kind, backend in BACKENDS.items() if backend == engine), TRAINING)


def seed_name(kind: str, environment: Mapping[str, str]) -> str:
    """The file name of the seed of a kind for processes with an environment.

    Processes have a seed in common only if what an executed one would inherit is the same, as are
    the installed packages and each variable that an import may read.
    """
    shared = DEFAULTS | {
        name: value
        for name, value in environment.items()
        if name not in OWN and not name.startswith(OWN_PREFIXES)
    }
    told = json.dumps([sys.executable, *_installed(), *_inherited(), shared], sort_keys=True)
    return f"{kind}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"


def _installed() -> list[str | int]:
    """The values that change when a package is installed, shoal among them."""
    packages = Path(sysconfig.get_path("purelib"))
    return [sys.version, packages.stat().st_mtime_ns, __file__, Path(__file__).stat().st_mtime_ns]


def _inherited() -> list[str]:
    """The properties that a process hands on to those that it starts: limits, priority, masks."""
    limits = Path("/proc/self/limits").read_text().splitlines()
    status = Path("/proc/self/status").read_text().splitlines()
    ignored = int(next(line.split()[1] for line in status if line.startswith("SigIgn:")), 16)
    # Python ignores SIGPIPE and SIGXFSZ for itself. Our mains take SIGINT and SIGTERM, which the
    # command in the background of a script ignores, and raise the limit of files.
    own = signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM
    ignored &= ~sum(1 << (number - 1) for number in own)
    return [
        *(line for line in limits if not line.startswith("Max open files")),
        *(line for line in status if line.startswith(("Umask:", "Cpus_allowed:", "Groups:"))),
        f"{ignored:x} {os.getpriority(os.PRIO_PROCESS, 0)}",
    ]
