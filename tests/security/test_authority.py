"""What a job's certificates say, and for how long."""

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from shoal.errors import UserError
from shoal.proto.identity import Caller, Identity, IdentityError
from shoal.security.authority import VALID, Authority

HOUR = dt.timedelta(hours=1)


def certificate(identity):
    return x509.load_pem_x509_certificate(identity.certificate)


def test_a_certificate_names_job_role_and_index():
    identity = Authority.made("j1").issue("ps", 3)
    assert identity.caller == Caller("j1", "ps", 3)
    names = certificate(identity).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.UniformResourceIdentifier) == ["shoal://j1/ps/3"]
    assert names.value.get_values_for_type(x509.DNSName) == ["ps-3.j1.shoal"]


def test_a_certificate_is_of_p256_bounded_in_time_and_can_sign_no_other():
    identity = Authority.made("j1").issue("worker")
    made = certificate(identity)
    assert isinstance(made.public_key().curve, ec.SECP256R1)
    now = dt.datetime.now(dt.UTC)
    assert made.not_valid_before_utc < now
    assert now + VALID - HOUR < made.not_valid_after_utc <= now + VALID
    basic = made.extensions.get_extension_for_class(x509.BasicConstraints)
    assert basic.critical
    assert not basic.value.ca
    made.verify_directly_issued_by(x509.load_pem_x509_certificate(identity.authority))


def test_the_key_is_the_certificates_and_is_no_others():
    authority = Authority.made("j1")
    first, second = authority.issue("worker", 0), authority.issue("worker", 0)
    assert first.key != second.key
    assert certificate(first).serial_number != certificate(second).serial_number


def test_an_authority_goes_on_from_its_key():
    authority = Authority.made("j1")
    again = Authority.from_key("j1", authority.key_pem)
    made = certificate(again.issue("ps"))
    # Also under the certificate that was there before.
    before = x509.load_pem_x509_certificate(authority.issue("ps").authority)
    made.verify_directly_issued_by(before)


@pytest.mark.parametrize("key", [b"", b"no key", b"-----BEGIN PRIVATE KEY-----\nAA==\n"])
def test_a_key_that_is_none_is_the_users_error(key):
    with pytest.raises(UserError, match="key of the job's authority"):
        Authority.from_key("j1", key)


def test_an_identity_shows_no_key():
    identity = Authority.made("j1").issue("ps")
    assert b"PRIVATE" in identity.key
    assert "PRIVATE" not in repr(identity)


def test_files_that_are_missing_are_named(tmp_path):
    with pytest.raises(IdentityError, match=f"ps-0 of job j1 cannot be read.*{tmp_path}"):
        Identity.load(tmp_path, Caller("j1", "ps", 0))
