"""A job's certificate authority: makes the certificates of its processes.

The client alone makes certificates, so `cryptography` is loaded here and nowhere else. Each job
has an authority of its own: a certificate of another job is of another authority.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shoal.errors import UserError
from shoal.proto.identity import CLIENT, MASTER, SERVER, WORKER, Caller, Identity

VALID = dt.timedelta(days=366)
"""How long a certificate can be used. `--resume` makes new ones."""

CLOCKS_DIFFER = dt.timedelta(hours=24)
"""By which the clocks of two machines may differ."""


class Authority:
    """Signs certificates of one job. Its key is in memory, unless it is asked for."""

    def __init__(self, job: str, key: ec.EllipticCurvePrivateKey) -> None:
        """job: JobConfig.job_id."""
        self._job = job
        self._key = key
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"shoal job {job}")])
        self._certificate = self._signed(None, key.public_key(), VALID)

    @classmethod
    def made(cls, job: str) -> Authority:
        """A new one."""
        return cls(job, ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def from_key(cls, job: str, key: bytes) -> Authority:
        """The one whose `key_pem` this is. Raises UserError if it is none."""
        try:
            loaded = serialization.load_pem_private_key(key, None)
        except (ValueError, TypeError) as error:
            raise UserError(f"the key of the job's authority cannot be read: {error}") from error
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise UserError("the key of the job's authority is of another kind")
        return cls(job, loaded)

    @property
    def key_pem(self) -> bytes:
        """The key itself: who has it can be any process of the job."""
        return _pem(self._key)

    def issue(self, role: str, index: int = 0, valid: dt.timedelta = VALID) -> Identity:
        """A new certificate and key of one process. valid: from now on."""
        caller = Caller(self._job, role, index)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed(caller, key.public_key(), valid)
        return Identity(caller, _encoded(self._certificate), _encoded(certificate), _pem(key))

    def _signed(
        self, caller: Caller | None, key: ec.EllipticCurvePublicKey, valid: dt.timedelta
    ) -> x509.Certificate:
        """A certificate of `caller`; None: the authority's own."""
        now = dt.datetime.now(dt.UTC)
        subject = self._name
        if caller is not None:
            name = f"{caller.role}-{caller.index}"
            subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        begin = min(now, now + valid) - CLOCKS_DIFFER
        path_length = 0 if caller is None else None
        made = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(now + valid)
            .add_extension(x509.BasicConstraints(caller is None, path_length), True)
            .add_extension(_usage(signs=caller is None), True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False
            )
        )
        if caller is not None:
            names = [x509.UniformResourceIdentifier(caller.uri), x509.DNSName(caller.host)]
            usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            made = made.add_extension(x509.SubjectAlternativeName(names), False)
            made = made.add_extension(x509.ExtendedKeyUsage(usages), False)
        return made.sign(self._key, hashes.SHA256())


def issued(authority: Authority, servers: int, workers: int) -> Iterator[Identity]:
    """A certificate for each process of a job with so many servers and workers."""
    for role, count in {MASTER: 1, CLIENT: 1, SERVER: servers, WORKER: workers}.items():
        for index in range(count):
            yield authority.issue(role, index)


def _usage(*, signs: bool) -> x509.KeyUsage:
    """signs: other certificates, instead of a handshake."""
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _encoded(certificate: x509.Certificate) -> bytes:
    return bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form, secret = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return bytes(key.private_bytes(serialization.Encoding.PEM, form, secret))
