"""The reasons for failed handshakes, each in a sentence that says what to do.

gRPC and the data plane give the reason in OpenSSL's words, and none if the other end has refused.
"""

from __future__ import annotations

import datetime as dt

from shoal.proto.identity import Identity

AGAIN = "`shoal train --resume` makes new certificates"

_OTHER_JOB = (
    "its certificate is of another job: use the address and the certificate of the same job"
)
_OTHER_PROCESS = (
    "by its certificate it is another process of the job: this address is no longer its own"
)
_OTHER_KEY = "this process's key is not its certificate's"

_REASONS = {
    "certificate has expired": f"its certificate has expired: {AGAIN}",
    "certificate is not yet valid": (
        "its certificate is not valid yet: the clocks of the two machines differ by more than a "
        "day, set them"
    ),
    "unable to get local issuer certificate": _OTHER_JOB,
    "self-signed certificate in certificate chain": _OTHER_JOB,
    "hostname verification check failed": _OTHER_PROCESS,
    "hostname mismatch": _OTHER_PROCESS,
    "wrong version number": (
        "it answers without encryption: it is no process of this job, or one with --tls=never"
    ),
    "failed to create security handshaker": _OTHER_KEY,
    "key values mismatch": _OTHER_KEY,
}
"""By a part of the words, which are small there, and between which there may be an underscore."""

_REFUSED = ("Socket closed", "EOF occurred", "closed by the other end", "reset by peer", "alert")


def explained(details: str, identity: Identity | None) -> str:
    """`details` of a call that failed, in plain words where they are of a handshake."""
    if identity is None:
        return details
    said = details.lower().replace("_", " ")
    for words, reason in _REASONS.items():
        if words in said:
            return reason
    if any(each in details for each in _REFUSED) and (expired := _expired(identity)):
        return expired
    return details


def _expired(identity: Identity) -> str:
    """That the identity's own time is over, in words; "" if it is not."""
    from cryptography import x509  # late: seldom needed

    end = x509.load_pem_x509_certificate(identity.certificate).not_valid_after_utc
    if end > dt.datetime.now(dt.UTC):
        return ""
    return f"the certificate of {identity.caller} has expired ({end:%Y-%m-%d %H:%M} UTC): {AGAIN}"
