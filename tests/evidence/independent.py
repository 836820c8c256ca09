"""Verify a bundle without Glasshouse: ``python independent.py BUNDLE PUBLIC_KEY RUN`` prints what is wrong.

Uses securesystemslib for the envelope and the standard library for the digests.
"""

import hashlib
import json
import sys
from pathlib import Path

from cryptography.hazmat.primitives.serialization import load_pem_public_key
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey


def digest(path: Path) -> str:
    """SHA-256 of a file; of a folder: of the lines that sha256sum prints for its files, sorted by name."""
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    files = {p.relative_to(path).as_posix(): p for p in path.rglob("*") if p.is_file()}
    lines = [
        f"{hashlib.sha256(files[n].read_bytes()).hexdigest()}  {n}\n" for n in sorted(files, key=str.encode)
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def problems(bundle: Path, public: Path, run: Path) -> list[str]:
    """Everything that does not hold; empty: verified."""
    envelope = json.loads(bundle.read_text())
    key = SSlibKey.from_crypto(
        load_pem_public_key(public.read_bytes()), keyid=envelope["signatures"][0]["keyid"]
    )
    signed = Envelope.from_dict(envelope)
    try:
        signed.verify([key], 1)
    except VerificationError as error:
        return [f"signature: {error}"]
    body = json.loads(signed.payload)
    if body["_type"] != "https://in-toto.io/Statement/v1":
        return ["no in-toto statement"]
    if body["predicateType"] != "https://in-toto.io/attestation/test-result/v0.1":
        return ["no test result"]
    parts = body["predicate"]["urn:glasshouse:evidence:v1"]["parts"]
    wrong = [name for name, wanted in parts.items() if digest(run / name) != wanted]
    named = {one["name"]: one["digest"]["sha256"] for one in body["subject"]}
    return wrong + [name for name, wanted in named.items() if parts.get(name) != wanted]


if __name__ == "__main__":
    found = problems(*map(Path, sys.argv[1:4]))
    print("\n".join(found) or "verified")
    sys.exit(bool(found))
