"""Validate an untrusted run before anything in it is used.

``replay`` runs attacks on the contents of such a run; the attacks build its models and trust its counts. So
everything is checked once here, in order of cost: file types, hashes, the JSON contents, sizes of models, and
shapes of tensors.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor

from glasshouse.audit.attacking.call import Side, adversary_side
from glasshouse.audit.attacking.claims import read_outcome
from glasshouse.audit.provenance.hashes import verify_hashes
from glasshouse.errors import BadFile
from glasshouse.models.outline import outline
from glasshouse.outside import limits
from glasshouse.outside.files import printable
from glasshouse.wire import CONTROL, Architecture, Broadcast, ClientMetrics, Dropout


def examine(run: Path, *, trust_factory: bool = False) -> None:
    """Read everything in ``run`` that an attack may see; reject contents that no simulation writes.

    Args:
        run: a run directory.
        trust_factory: build architectures ``module:factory`` named by the run. They are treated as the user's
            own: their size is not checked.

    Raises:
        BadFile: a link, a changed file, an architecture that is not registered, a model or a number of
            examples above the limits, tensors that do not match the model.
        BadValue: a tensor that is empty or not finite.
    """
    verify_hashes(run)
    for group in sorted((run / "cells").glob("*/transcript")):
        side = adversary_side(str(group.parent.resolve()), trust_factory=trust_factory)
        for claims in sorted((group.parent / "claims").glob("*/*/claims.json")):
            read_outcome(claims.parent)
        if not trust_factory:
            _check_models(side, subject=f"transcript of '{group.parent.name}'")


def _check_models(side: Side, *, subject: str) -> None:
    terms = side.transcript.terms
    outlines: dict[str, dict[str, Tensor]] = {}

    def tensors_of(architecture: Architecture) -> dict[str, Tensor]:
        key = repr(architecture)
        if key not in outlines:
            outlines[key] = outline(architecture)
        return outlines[key]

    # A server may send another model than was agreed; what clients answer must fit one of them.
    agreed = tensors_of(terms.architecture)
    for record in side.transcript.rounds:
        broadcast = [agreed, *(tensors_of(b.architecture) for b in record.broadcasts)]
        for message in record.messages():
            if isinstance(message, ClientMetrics | Dropout):
                continue
            where = f"{subject}, {type(message).__name__.lower()} of round {record.round}"
            _check_shapes(message.tensors, broadcast, subject=where)
            if not isinstance(message, Broadcast):
                _check_shapes(message.buffers, broadcast, subject=where)
                _check_examples(message.examples, terms.architecture, subject=where)


def _check_shapes(
    tensors: Mapping[str, Tensor], models: Iterable[Mapping[str, Tensor]], *, subject: str
) -> None:
    """Raise unless every tensor belongs to a model that was sent, or is a table of logits."""
    models = tuple(models)
    for received, t in tensors.items():  # one is read at a time
        name = received.removeprefix(CONTROL)  # a control variate has the shape of its parameter
        known = {tuple(m[name].shape) for m in models if name in m}
        if name == "logits" and not known:
            continue
        if tuple(t.shape) not in known:
            shapes = " or ".join(map(str, sorted(known))) or "no tensor of that name"
            raise BadFile(
                subject,
                needs=f"the tensors of the architecture: '{printable(name)[: limits.TEXT]}' is {shapes}",
                got=str(tuple(t.shape)),
                fix="correct the architecture or the file",
            )


def _check_examples(examples: int, architecture: Architecture, *, subject: str) -> None:
    """Raise if there are more examples than an attack may allocate images for."""
    if examples * math.prod(architecture.input_shape) > limits.NUMBERS():
        raise BadFile(
            subject,
            needs=f"examples of at most {limits.NUMBERS():,} numbers together",
            got=f"{examples:,} {architecture.inputs.nouns} {architecture.input_shape}",
            fix=f"correct 'examples' in rounds.jsonl, or {limits.NUMBERS.advice}",
        )
