"""The identity of a process: its certificate, its key, and its job authority's certificate.

Owns the names in certificates, the form in which gRPC takes them, and reading the caller of a call.
Making certificates is shoal.security's.

A certificate names a process twice: as shoal://JOB/ROLE/INDEX, which says who calls, and as the
host ROLE-INDEX.JOB.shoal, which TLS compares with the process that is meant. So it does not
matter at which address a process is, nor through which relay it is reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import Error

if TYPE_CHECKING:
    import grpc

AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.crt", "tls.crt", "tls.key"
"""Files of an identity's folder, PEM; Secrets of Kubernetes use the same names."""

POD_FOLDER = "/etc/shoal-identity"
"""Where a pod has the files of its own identity."""

SCHEME, DOMAIN = "shoal://", "shoal"

MASTER, SERVER, WORKER, CLIENT = "master", "ps", "worker", "client"
ROLES = (MASTER, SERVER, WORKER, CLIENT)


class IdentityError(Error):
    """The files of an identity cannot be used; says which and why."""


@dataclass(frozen=True, order=True)
class Caller:
    """The process that a certificate names."""

    job: str
    role: str
    index: int

    @property
    def uri(self) -> str:
        """Its name in a certificate."""
        return f"{SCHEME}{self.job}/{self.role}/{self.index}"

    @property
    def host(self) -> str:
        """The name by which TLS knows it."""
        return host_of(f"{self.role}-{self.index}", self.job)

    def __str__(self) -> str:
        return f"{self.role}-{self.index} of job {self.job}"


def host_of(process: str, job: str) -> str:
    """The host name of a process (ps-1) in certificates."""
    return f"{process}.{job}.{DOMAIN}"


def named(uri: str) -> Caller | None:
    """The process that a URI of a certificate names; None if it names none."""
    if not uri.startswith(SCHEME):
        return None
    parts = uri.removeprefix(SCHEME).split("/")
    if len(parts) != 3 or parts[1] not in ROLES:
        return None
    job, role, index = parts
    if not job or not (index.isascii() and index.isdecimal()):
        return None
    return Caller(job, role, int(index))


def caller_of(context: Mapping[str, Sequence[bytes]]) -> Caller | None:
    """The caller, by gRPC's authentication context; None for a call without a certificate."""
    if context.get("transport_security_type") != [b"ssl"]:
        return None
    for name in context.get("x509_subject_alternative_name", ()):
        if (caller := named(name.decode("utf-8", "replace"))) is not None:
            return caller
    return None


@dataclass(frozen=True)
class Identity:
    """One process's proof of who it is. authority, certificate, key: PEM."""

    caller: Caller
    authority: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)

    @classmethod
    def load(cls, folder: Path, caller: Caller) -> Identity:
        """Read the files in `folder`, which are `caller`'s. Raises IdentityError."""
        try:
            read = [
                (folder / name).read_bytes()
                for name in (AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE)
            ]
        except OSError as error:
            raise IdentityError(f"the certificate of {caller} cannot be read: {error}") from error
        return cls(caller, *read)

    def channel(self, address: str, process: str, options: Sequence[tuple[str, Any]]) -> Any:
        """A channel to `process` (ps-1) of the same job, wherever it is."""
        import grpc  # late: as in transport.py

        credentials = grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)
        name = host_of(process, self.caller.job)
        meant = ("grpc.ssl_target_name_override", name)
        return grpc.secure_channel(address, credentials, options=[*options, meant])

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a server that takes callers of the same authority only."""
        import grpc  # late: as in transport.py

        pair = (self.key, self.certificate)
        return grpc.ssl_server_credentials([pair], self.authority, require_client_auth=True)
