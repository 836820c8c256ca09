"""Open a message in a process of its own: what an app or a server wrote is never parsed in the gate itself.

The first functions run in that process, and return what JSON can hold; the last two ask for them from the
gate. Tensors and objects stand in files without names, of which only descriptors are handed on.
"""

import base64
import functools
from collections import ChainMap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final, Literal

from glasshouse.gate.apart.bench import Bench, Judged, Payload
from glasshouse.gate.apart.calls import NotOpened, Opener
from glasshouse.gate.apart.limits import Limits
from glasshouse.gate.apart.spool import Spool
from glasshouse.gate.message import Decision, Outgoing, Reason
from glasshouse.gate.shelf import Forms, Shelf, lay
from glasshouse.integrations.flower_gate import names
from glasshouse.integrations.flower_gate.decoding import decode
from glasshouse.integrations.flower_gate.encoding import Encoded
from glasshouse.integrations.flower_gate.exchange import (
    Answer,
    Gather,
    Pulled,
    Question,
    encode_allowed,
    outgoing,
    payload_of,
)
from glasshouse.integrations.flower_gate.objects import Malformed
from glasshouse.integrations.flower_gate.secure import read_terms

Places = dict[str, tuple[int, int]]
COPIES: Final = 2
"""How often a message may stand in memory."""
READER: Final = 16
"""How often a document may stand in memory while it is read: trees are many small objects."""
DOCUMENTS: Final = "glasshouse.gate.preflight.documents"
"""What is imported for documents, once."""


@functools.cache
def opener(*more: str) -> Opener:
    """The process that opens messages; another one, which imports ``more``, if there are documents to judge.

    It holds little beside numpy: the larger a process, the longer each fork takes.
    """
    return Opener(("glasshouse.integrations.flower_gate.bare", __name__, *more))


# In the process of their own.


def read_question(question: Question, root: str, objects: Places, source: int, target: int) -> dict[str, Any]:
    """Decode a question, look at its terms, and lay its tensors into ``target``."""
    spool = Spool(target)
    try:
        decoded = decode(root, Spool(source, objects), release=True)
    except Malformed as error:
        return {"malformed": str(error)}
    secure, configs = decoded.configs.get(names.SECURE_RECORD), decoded.configs.values()
    memory, metadata, broken = question.secure, question.metadata, ""
    # Here, and not in the gate's own process: terms come from outside as the tensors do.
    if secure is not None:
        broken = read_terms(secure, memory, own=metadata.dst_node_id, group=metadata.group_id)
    documents = sum(config.ByteSize() for config in configs)
    forms = lay(decoded.arrays, spool)
    return {
        "documents": documents,
        "forms": forms,
        "places": spool.places,
        "secure": memory,
        "broken": broken,
    }


def judge_answer(
    bench: Bench, answer: Answer, objects: Places, shelved: tuple[Places, Forms], *files: int
) -> dict[str, Any]:
    """Decode an answer, judge it, and lay the objects of what may be sent into a file.

    Args:
        bench: what a decision needs.
        answer: the answer.
        objects: where its objects stand.
        shelved: where the question's tensors stand, and their forms.
        files: descriptors: objects, what may be sent, and the question's tensors, if it had any.
    """
    source, target, *shelf = files
    places, forms = shelved
    received = Shelf(spool=Spool(shelf[0], places), forms=forms).arrays() if shelf else None
    spool = Spool(source, objects)
    whole = spool.at(objects)
    message, decoded = outgoing(answer, spool, bench.policy.out.records, received)

    # Called if something may be sent, with what may be sent: never with the answer itself.
    def encode(allowed: Outgoing) -> Payload[Encoded]:
        order, shown = bench.policy.out.records, received or ()
        return payload_of(
            encode_allowed(allowed, decoded, answer.question, order=order, received=shown, objects=whole)
        )

    judged = bench.judge(message, received, encode)
    sent = Spool(target)
    payload = None if judged.payload is None else _lay_payload(judged.payload.content, sent)
    papers = sent.at({})
    return {
        "decision": _tell_decision(judged.decision),
        "secure": answer.question.secure,
        "tensors": judged.tensors,
        "payload": payload,
        "forms": lay(dict(judged.papers), papers),
        "papers": papers.places,
    }


def _tell_decision(decision: Decision) -> dict[str, Any]:
    return {
        "action": decision.action,
        "reasons": [asdict(reason) for reason in decision.reasons],
        "measures": {name: float(value) for name, value in decision.measures.items()},
        "mu_squared": float(decision.mu_squared),
        "got": decision.got,
        "unjudged": list(decision.unjudged),
    }


def _lay_payload(encoded: Encoded, spool: Spool) -> dict[str, Any]:
    for identity in encoded.small:
        spool[identity] = encoded.small[identity]
    for identity in encoded.chunks.keys() - encoded.kept:
        spool.add(identity, *encoded.parts(identity))
    return {
        "root": encoded.root,
        "proto": base64.b64encode(encoded.proto.SerializeToString()).decode(),
        "tree": base64.b64encode(encoded.tree.SerializeToString()).decode(),
        "size": encoded.size,
        "places": spool.places,
        "kept": sorted(encoded.kept),
    }


# In the gate.


def opened_question(pulled: Pulled, spool: Spool) -> tuple[Shelf, int, str]:
    """The tensors of a question, laid into ``spool``, the bytes of configuration in it, and its broken term.

    What it says of a secure sum is remembered in ``pulled.secure``.

    Raises:
        Malformed: it is no message, or could not be opened within its limits.
    """
    contents, limits = pulled.contents, Limits.of(pulled.bytes)
    try:
        files = (contents.descriptor, spool.descriptor)
        question = Question(metadata=pulled.metadata, app=pulled.app, secure=pulled.secure)
        told = opener().call(read_question, limits, (question, pulled.root, contents.places), files)
    except NotOpened as error:
        raise Malformed(f"not opened: {error}") from error
    if "malformed" in told:
        raise Malformed(told["malformed"])
    _remember(pulled.secure, told["secure"])
    shelf = Shelf(spool=spool.at(_places(told["places"])), forms=_forms(told["forms"]))
    return shelf, int(told["documents"]), str(told["broken"])


def judged_answer(bench: Bench, gather: Gather, spool: Spool) -> Judged[Encoded]:
    """The decision on a collected answer, and in ``spool`` what may be sent.

    What cannot be opened within its limits is refused.
    """
    out, shelf, contents = bench.policy.out, gather.pulled.shelf, gather.contents
    more = () if bench.documents is None else (DOCUMENTS,)
    limits = Limits.of(
        gather.answer.size,
        mapped=shelf.mapped if shelf else 0,
        copies=COPIES if out.document is None else READER,
        patience=out.preflight.seconds if out.preflight else 0.0,
    )
    shelved: tuple[Places, Forms] = ({}, {})
    files = [contents.descriptor, spool.descriptor]
    if shelf is not None and shelf.forms:
        shelved, files = (shelf.spool.places, shelf.forms), [*files, shelf.spool.descriptor]
    # In a process of its own: an answer may be made to exhaust or to crash whoever decodes it.
    try:
        told = opener(*more).call(
            judge_answer, limits, (bench, gather.answer, contents.places, shelved), files
        )
    except NotOpened as error:
        reason = Reason(rule="not_opened", detail=str(error))
        return Judged(decision=Decision(action="refused", reasons=(reason,)))
    # A secure sum goes on only with what is sent.
    if told["payload"] is not None:
        _remember(gather.pulled.secure, told["secure"])
    return _judged(told, spool, contents)


def _remember(memory: dict[str, Any], told: dict[str, Any]) -> None:
    """Keep what the other process says of a secure sum, in the node's own memory."""
    memory.clear()
    memory.update(told)


def _judged(told: dict[str, Any], spool: Spool, contents: Spool) -> Judged[Encoded]:
    """What the other process said, in the gate's own types."""
    said = told["decision"]
    action: Literal["passed", "changed", "refused"] = said["action"]
    if action not in ("passed", "changed", "refused") or (action == "refused") != (told["payload"] is None):
        raise ValueError("decision")
    decision = Decision(
        action=action,
        reasons=tuple(Reason(rule=str(one["rule"]), detail=str(one["detail"])) for one in said["reasons"]),
        measures={str(name): float(value) for name, value in said["measures"].items()},
        mu_squared=float(said["mu_squared"]),
        got=str(said["got"]),
        unjudged=tuple(map(str, said["unjudged"])),
    )
    papers = Shelf(spool=spool.at(_places(told["papers"])), forms=_forms(told["forms"])).arrays()
    payload = None
    if told["payload"] is not None:
        one = told["payload"]
        # what did not change stands among the objects that came, each checked against its id by the gate
        kept = contents.at({str(identity): contents.places[str(identity)] for identity in one["kept"]})
        encoded = Encoded(
            root=str(one["root"]),
            proto=names.ProtoMessage.FromString(base64.b64decode(one["proto"])),
            tree=names.ProtoTree.FromString(base64.b64decode(one["tree"])),
            small=ChainMap(spool.at(_places(one["places"])), kept),
            size=int(one["size"]),
        )
        payload = payload_of(encoded)
    return Judged(decision=decision, payload=payload, tensors=int(told["tensors"]), papers=papers)


def _places(told: dict[str, Sequence[int]]) -> Places:
    return {name: (int(start), int(length)) for name, (start, length) in told.items()}


def _forms(told: dict[str, Sequence[Any]]) -> Forms:
    return {name: (str(dtype), tuple(map(int, shape))) for name, (dtype, shape) in told.items()}
