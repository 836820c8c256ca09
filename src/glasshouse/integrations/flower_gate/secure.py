"""SecAgg+ at the gate: the server's terms, and the form of what a client answers at each stage.

Whatever stands under a mask cannot be judged. What can be is everything else: the terms under which a single
update could be unmasked, who may be named, how many values there are, of what size and type, and that keys
are keys. An answer's record is written anew from what was read, so that orders, paddings and unused bits
carry nothing.
"""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from glasshouse.gate.message import Arrays
from glasshouse.guard.rules.secure_sum import COLLECT, SETUP, SHARE_KEYS, UNMASK, broken_term
from glasshouse.integrations.flower_gate import names
from glasshouse.integrations.flower_gate.decoding import npy_header, read_npy
from glasshouse.integrations.flower_gate.objects import Malformed

TOKEN: Final = 4096
"""Bytes of one encrypted pair of shares; Flower's have some 800."""
SHARE: Final = 1024
"""Bytes of one share of a secret; Flower's have 52 or some 340."""
PIECE: Final = 16
_FRESH, _TAG = 25, 32  # a token's version, time and first block, and its code of authenticity

Memory = dict[str, Any]
Values = dict[str, Any]


class BadShare(ValueError):
    """An answer that the protocol's client would not give. The text is ours."""


def read_terms(record: Any, memory: Memory, *, own: int, group: str) -> str:
    """What is wrong with the server's instruction, in a sentence; empty: nothing.

    Args:
        record: the instruction, as protobuf.
        memory: of earlier instructions to this node in this run; changed.
        own: the node's number.
        group: as the server names the round.
    """
    number = int(group) if group.isdecimal() and len(group) < 10 else 0
    try:
        return broken_term(_plain(record), memory, own=own, number=number)
    except (TypeError, ValueError, AttributeError):
        return "values of another type than the protocol's"


def rebuilt_share(record: Any, memory: Memory, *, own: int, received: Arrays | None) -> Any:
    """The answer's record, written anew.

    Args:
        record: the answer, as protobuf.
        memory: of the instructions so far; own keys are added to it.
        own: the node's number.
        received: the tensors that are answered.

    Raises:
        BadShare: another form than that of the stage that was asked for.
    """
    # The stage that was asked for decides the form, never what the answer says it is.
    stage = memory["stages"][-1] if memory.get("stages") else ""
    build = _STAGES.get(stage)
    if build is None:
        raise BadShare("answers no stage of a secure sum")
    values = {item.key: _value_of(item.value, bytes) for item in record.items}
    if len(values) != len(record.items):
        raise BadShare("a key twice")
    shapes = [array.shape for array in (received or {}).values()]
    rebuilt = names.RECORDS["ConfigRecord"]()
    for key, value in build(values, memory, own, shapes).items():
        one = rebuilt.items.add(key=key).value
        if isinstance(value, bytes):
            one.bytes = value
        elif key in ("dsts", "nids"):
            whole = one.uint_list if any(n >= 2**63 for n in value) else one.sint_list
            whole.vals.extend(value)
        else:
            one.bytes_list.vals.extend(value)
    return rebuilt


def _only(values: Values, *keys: str) -> list[Any]:
    if values.keys() != set(keys):
        raise BadShare("other keys than the stage has")
    return [values[key] for key in keys]


def _keys(values: Values, memory: Memory, own: int, shapes: Sequence[tuple[int, ...]]) -> Values:
    """Two public keys on the curve that Flower uses, in the one form that it writes."""
    del own, shapes
    for content in _only(values, "pk1", "pk2"):
        try:
            key = load_pem_public_key(content)
        except (TypeError, ValueError, UnsupportedAlgorithm) as error:
            raise BadShare("no public key") from error
        if not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP384R1):
            raise BadShare("a key of another kind")
        if key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) != content:
            raise BadShare("a key in another form")
    memory["own_keys"] = [values["pk1"].hex(), values["pk2"].hex()]
    return {"pk1": values["pk1"], "pk2": values["pk2"]}


def _tokens(values: Values, memory: Memory, own: int, shapes: Sequence[tuple[int, ...]]) -> Values:
    """One encrypted pair of shares for each neighbour, all of one length."""
    del shapes
    nodes, tokens = _only(values, "dsts", "ctxts")
    others = sorted(set(memory.get("neighbours", [])) - {own})
    if not isinstance(nodes, list) or not isinstance(tokens, list) or len(nodes) != len(tokens):
        raise BadShare("shares and receivers do not match")
    if sorted(nodes) != others:
        raise BadShare("other receivers than the neighbours")
    # In one form and of one length: what can be written in two ways can carry a message.
    for token in tokens:
        try:
            content = base64.urlsafe_b64decode(token)
        except (TypeError, binascii.Error) as error:
            raise BadShare("no encrypted share") from error
        body = len(content) - _FRESH - _TAG
        whole = len(token) <= TOKEN and base64.urlsafe_b64encode(content) == token and content[:1] == b"\x80"
        if not whole or body <= 0 or body % PIECE or len(token) != len(tokens[0]):
            raise BadShare("an encrypted share in another form")
    ordered = dict(sorted(zip(nodes, tokens, strict=True)))
    return {"dsts": list(ordered), "ctxts": list(ordered.values())}


def _vectors(values: Values, memory: Memory, own: int, shapes: Sequence[tuple[int, ...]]) -> Values:
    """A weight and a vector for each received tensor, of its shape, below the modulus."""
    del own
    (vectors,) = _only(values, "masked_params")
    if not isinstance(vectors, list) or len(vectors) != 1 + len(shapes):
        raise BadShare("another number of masked vectors than of tensors")
    modulus, built = memory.get("modulus", 0), []
    for content, shape in zip(vectors, [(1,), *shapes], strict=True):
        if not isinstance(content, bytes):
            raise BadShare("no masked vector")
        try:
            array = read_npy(
                np.frombuffer(content, np.uint8), {"stype": names.STYPE, "shape": [], "dtype": ""}
            )
        except Malformed as error:
            raise BadShare(str(error)) from error
        if array.dtype.name not in ("int64", "uint64", "int32", "uint32") or array.shape != shape:
            raise BadShare("a masked vector of another type or shape")
        if array.size and not (array.min() >= 0 and array.max() < modulus):
            raise BadShare(
                "a masked vector beyond the modulus"
            )  # unused high bits would carry what they like
        built.append(npy_header(array) + array.tobytes())
    return {"masked_params": built}


def _shares(values: Values, memory: Memory, own: int, shapes: Sequence[tuple[int, ...]]) -> Values:
    """One share for each client that the server named, in its order."""
    del own, shapes
    nodes, shares = _only(values, "nids", "shares")
    active, dead = memory.get("active", []), memory.get("dead", [])
    if nodes != [*active, *dead] or not isinstance(shares, list) or len(shares) != len(nodes):
        raise BadShare("shares of others than the server named")
    for kind in (shares[: len(active)], shares[len(active) :]):
        for share in kind:
            if not isinstance(share, bytes) or len(share) != len(kind[0]) or len(share) > SHARE:
                raise BadShare("a share of another size")
            index = int.from_bytes(share[:4], "little")
            if len(share) % PIECE != 4 or not 1 <= index <= memory.get("shares", 0):
                raise BadShare("a share in another form")
    return {"nids": nodes, "shares": shares}


_Build = Callable[[Values, Memory, int, Sequence[tuple[int, ...]]], Values]
_STAGES: Final[Mapping[str, _Build]] = {
    SETUP: _keys,
    SHARE_KEYS: _tokens,
    COLLECT: _vectors,
    UNMASK: _shares,
}


def _plain(record: Any) -> Values:
    """A record's values as JSON can hold them: bytes in hexadecimal."""
    return {item.key: _value_of(item.value, bytes.hex) for item in record.items}


def _value_of(value: Any, of_bytes: Callable[[bytes], Any]) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    found = getattr(value, kind)
    if kind.endswith("_list"):
        return [of_bytes(one) if isinstance(one, bytes) else one for one in found.vals]
    return of_bytes(found) if isinstance(found, bytes) else found
