"""Signed envelopes: DSSE with Ed25519.

Source: secure-systems-lab/dsse, protocol v1.0.2: signed is ``DSSEv1 LEN TYPE LEN BODY`` (lengths in bytes,
as decimals, one space between), so that a body cannot be passed off as one of another type. Keys are PEM
files, as ``openssl genpkey -algorithm ed25519`` writes them; a key's id is the SHA-256 of its public part
(DER, SPKI).
"""

import base64
import binascii
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from glasshouse.disk import unwritable
from glasshouse.errors import BadFile, BadValue, not_installed
from glasshouse.evidence import digests
from glasshouse.outside.files import parse_json, read_limited, reason

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

__all__ = ["TYPE", "Refused", "key_id", "new_key", "opened", "read_private", "read_public", "sealed"]

TYPE: Final = "application/vnd.in-toto+json"
_KEY_BYTES: Final = 2**14


class Refused(Exception):
    """An envelope is not what it says; ``check`` names what failed.

    Args:
        check: a word or two.
        got: what was found.
    """

    def __init__(self, check: str, got: str) -> None:
        self.check, self.got = check, got
        super().__init__(f"{check}: {got}")


def sealed(body: bytes, key: "Ed25519PrivateKey") -> dict[str, Any]:
    """``body`` in an envelope of type :data:`TYPE`, signed."""
    signature = {"keyid": key_id(key.public_key()), "sig": _text(key.sign(_signed(TYPE, body)))}
    return {"payloadType": TYPE, "payload": _text(body), "signatures": [signature]}


def opened(envelope: Any, key: "Ed25519PublicKey") -> bytes:
    """The body of an envelope that this key signed.

    Raises:
        Refused: ``envelope``, ``key`` or ``signature`` is not what it should be.
    """
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - an extra; the key came from it

    if not isinstance(envelope, dict) or envelope.keys() != {"payloadType", "payload", "signatures"}:
        raise Refused("envelope", "not the three parts of a DSSE envelope")
    if envelope["payloadType"] != TYPE:
        raise Refused("payload type", f"not {TYPE}")
    body = _bytes(envelope["payload"], "payload")
    rows = envelope["signatures"]
    signatures = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    own = [row for row in signatures if row.get("keyid") == key_id(key)]
    if not own:
        raise Refused("key", "signed by another key, or by none")
    try:
        key.verify(_bytes(own[0].get("sig"), "signature"), _signed(TYPE, body))
    except InvalidSignature as error:
        raise Refused("signature", "does not fit: envelope or statement was changed") from error
    return body


def key_id(key: "Ed25519PublicKey") -> str:
    """SHA-256 of a public key in DER, 64 hexadecimal digits."""
    from cryptography.hazmat.primitives import serialization as form  # noqa: PLC0415 - an extra

    encoded = key.public_bytes(form.Encoding.DER, form.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(encoded).hexdigest()


def new_key(path: Path) -> Path:
    """Write a new private key to ``path``, readable by its owner alone, and its public part to ``path.pub``.

    Returns:
        The path of the public part.

    Raises:
        BadFile: ``path`` exists, or cannot be written.
        NotInstalled: the extra ``evidence`` is missing.
    """
    form, ed25519 = _library()
    key = ed25519.Ed25519PrivateKey.generate()
    secret = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    beside = path.with_name(f"{path.name}.pub")
    try:
        # A key is never written over: what it signed could not be verified any more.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secret)
        beside.write_bytes(public)
    except OSError as error:
        raise unwritable(path, error) from error
    return beside


def read_private(path: Path) -> "Ed25519PrivateKey":
    """Read a private key.

    Raises:
        BadFile: no Ed25519 key in PEM without a password, or others may read the file.
        NotInstalled: the extra ``evidence`` is missing.
    """
    form, ed25519 = _library()
    subject = f"key '{path}'"
    content = read_limited(path, _KEY_BYTES, subject=subject)
    if os.name == "posix" and path.stat().st_mode & 0o077:
        raise BadFile(subject, needs="a file that only its owner can read", got="others may", fix="chmod 600")
    try:
        key = form.load_pem_private_key(content, password=None)
    except (ValueError, TypeError) as error:
        raise _no_key(subject, "a private", reason(error)) from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise _no_key(subject, "a private", type(key).__name__)
    private: Ed25519PrivateKey = key
    return private


def read_public(path: Path) -> "Ed25519PublicKey":
    """Read a public key. Raises as :func:`read_private`."""
    form, ed25519 = _library()
    subject = f"key '{path}'"
    try:
        key = form.load_pem_public_key(read_limited(path, _KEY_BYTES, subject=subject))
    except ValueError as error:
        raise _no_key(subject, "a public", reason(error)) from error
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise _no_key(subject, "a public", type(key).__name__)
    public: Ed25519PublicKey = key
    return public


def read_envelope(path: Path) -> Any:
    """The envelope in a file, not yet checked.

    Raises:
        BadFile: missing, too large, or no JSON.
    """
    subject = f"bundle '{path}'"
    content = read_limited(path, digests.LARGEST, subject=subject)
    return parse_json(content.decode("utf-8", "replace"), subject=subject)


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise not_installed("signatures", "cryptography", error, extra="evidence") from error
    return serialization, ed25519


def _no_key(subject: str, kind: str, got: str) -> BadValue:
    return BadValue(
        subject,
        needs=f"{kind} Ed25519 key in PEM, without a password",
        got=got,
        fix="glasshouse attest --new-key FILE, or openssl genpkey -algorithm ed25519",
    )


def _signed(kind: str, body: bytes) -> bytes:
    return b"DSSEv1 %d %b %d %b" % (len(kind.encode()), kind.encode(), len(body), body)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def _bytes(text: object, check: str) -> bytes:
    try:
        return base64.b64decode(text if isinstance(text, str) else "?", validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused(check, "no base64") from error
