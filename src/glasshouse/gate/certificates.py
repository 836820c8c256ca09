"""A certificate for the gate's own side: nodes on the site's network trust one authority, made here."""

import ipaddress
import os
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from glasshouse.disk import unwritable
from glasshouse.errors import not_installed

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID
except ImportError as error:
    raise not_installed("the gate's certificate", "cryptography", error, extra="gate") from error

DAYS: Final = 365
CERTIFICATES: Final = ("gate-ca.pem", "gate-tls.pem")
"""What is written: for nodes, and for the gate's user only."""
_PEM: Final = serialization.Encoding.PEM


def create_certificates(folder: Path) -> tuple[Path, Path]:
    """Write ``gate-ca.pem`` (for nodes) and ``gate-tls.pem`` (certificate and key, for the gate's user only).

    The authority's own key is forgotten: it signs this one certificate. It holds for 127.0.0.1, localhost and
    this machine's name, for a year.

    Raises:
        BadFile: a file exists, or cannot be written.
    """
    authority_key, own_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name, own_name = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("gate authority", "gate")
    )
    authority = (
        _builder(authority_name, authority_name, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    names = [
        x509.DNSName("localhost"),
        x509.DNSName(socket.gethostname()),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    own = (
        _builder(own_name, authority_name, own_key)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    secret = own_key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public, private = (folder / name for name in CERTIFICATES)
    _write(public, authority.public_bytes(_PEM), mode=0o644)
    _write(private, own.public_bytes(_PEM) + secret, mode=0o600)
    return public, private


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _write(path: Path, data: bytes, *, mode: int) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
    except OSError as error:
        raise unwritable(path, error) from error
