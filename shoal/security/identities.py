"""The owners of certificates: the processes of one job, and the commands that ask about it.

Owns the protection of a job's processes from strangers, and the files of certificates in a job
folder. On one machine they talk over Unix sockets in a folder that is the user's alone, and need
no certificates; with --tls=always, or where no socket's path is short enough, over TCP with mutual
TLS.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from shoal.base.disk import temporary
from shoal.base.disk.job_folder import JobFolder
from shoal.base.disk.wholefile import replacing
from shoal.config.job import JobConfig
from shoal.errors import UserError
from shoal.proto.identity import (
    AUTHORITY_FILE,
    CERTIFICATE_FILE,
    CLIENT,
    KEY_FILE,
    POD_FOLDER,
    Caller,
    Identity,
    IdentityError,
)

INSECURE = (
    "--tls=never: the job's processes do not know who calls them. Whoever reaches their ports can "
    "read and change the model, and stop the job"
)


def prepare(config: JobConfig, folder: JobFolder) -> None:
    """Make what the processes of a job on this machine need to know each other.

    A job that goes on keeps its authority, and its processes, of which none is left, get new
    certificates. Raises UserError.
    """
    sockets = config.tls == "auto" and temporary.sockets(folder) is not None
    try:
        if config.insecure or sockets:
            shutil.rmtree(folder.identities, ignore_errors=True)
            return
        from shoal.security.authority import (  # late: it takes longer than the rest
            Authority,
            issued,
        )

        folder.identities.mkdir(mode=0o700, exist_ok=True)
        if folder.authority_key.is_file():
            authority = Authority.from_key(config.job_id, folder.authority_key.read_bytes())
        else:
            authority = Authority.made(config.job_id)
            with replacing(folder.authority_key) as made:
                _write(made, authority.key_pem)
        for old in folder.identities.iterdir():
            if old.is_dir():
                shutil.rmtree(old)
        for identity in issued(authority, config.num_servers, config.num_workers):
            keep(identity, folder)
    except OSError as error:
        raise UserError(f"the job's certificates cannot be written: {error}") from error


def _uses_tls(config: JobConfig, folder: JobFolder) -> bool:
    """True if the processes of a job on this machine have certificates, once it is prepared."""
    if config.insecure:
        return False
    return config.tls == "always" or folder.identities.is_dir()


def ensure(config: JobConfig, folder: JobFolder, role: str, index: int) -> None:
    """See that a process of this machine has a certificate if it needs one.

    There were none yet for the workers that came with `shoal scale`. Raises OSError.
    """
    if not _uses_tls(config, folder) or folder.identity_of(role, index).is_dir():
        return
    from shoal.security.authority import Authority  # late: seldom needed

    try:
        authority = Authority.from_key(config.job_id, folder.authority_key.read_bytes())
    except UserError as error:
        raise OSError(f"{folder.authority_key}: {error}") from error
    keep(authority.issue(role, index), folder)


def own_identity(
    config: JobConfig, folder: JobFolder, role: str, index: int = 0
) -> Identity | None:
    """The identity of one process; None where it needs none. Raises IdentityError."""
    caller = Caller(config.job_id, role, index)
    if config.image:
        return None if config.insecure else Identity.load(Path(POD_FOLDER), caller)
    if not _uses_tls(config, folder):
        return None
    return Identity.load(folder.identity_of(role, index), caller)


def client_identity(config: JobConfig, folder: JobFolder) -> Identity | None:
    """The identity, as `own_identity`, of a command about the job. Raises UserError."""
    try:
        return own_identity(config, folder, CLIENT)
    except IdentityError as error:
        raise UserError(
            f"{error}; it is made when a job starts, for the user who starts it"
        ) from error


def listening_address(config: JobConfig, folder: JobFolder, process: str) -> str:
    """The address of a process (ps-1.0) on this machine: a Unix socket, or any free port.

    Raises IdentityError if somebody has removed the folder of the sockets.
    """
    tcp = config.insecure or _uses_tls(config, folder)
    sockets = None if tcp else temporary.sockets(folder)
    if not tcp and sockets is None and folder.temporary.exists():
        raise IdentityError(
            f"the folder of the job's sockets, which {folder.temporary} names, is gone, or others "
            "can enter it; stop the job and go on with: shoal train --resume"
        )
    return f"unix:{sockets / process}" if sockets else "127.0.0.1:0"


def keep(identity: Identity, folder: JobFolder) -> None:
    """Write the files of an identity, for this user alone, in place of any before.

    Raises OSError.
    """
    caller = identity.caller
    place = folder.identity_of(caller.role, caller.index)
    made = place.with_name(f".{place.name}.{os.getpid()}")
    shutil.rmtree(made, ignore_errors=True)  # of a process that was killed
    made.mkdir(mode=0o700)
    _write(made / AUTHORITY_FILE, identity.authority)
    _write(made / CERTIFICATE_FILE, identity.certificate)
    _write(made / KEY_FILE, identity.key)
    shutil.rmtree(place, ignore_errors=True)
    made.rename(place)


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
