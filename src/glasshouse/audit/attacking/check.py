"""Validate the claims of an untrusted plug-in: scorable, and about the unit that it was called for."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Final

import torch

from glasshouse.attacks.base import Claim, ClassRepresentatives, ClientScores, Reconstruction, tensors_of
from glasshouse.attacks.sequences import OccurredTokens, Sequences
from glasshouse.audit.attacking.claims import Unit
from glasshouse.errors import BadValue
from glasshouse.modalities.sentence import vocabulary_of
from glasshouse.registry import entry, names
from glasshouse.tensors import check_finite
from glasshouse.transcript.view import View

CANDIDATES_PER_EXAMPLE: Final = 64
"""Images that a reconstruction may contain per private example announced in the messages."""

CANDIDATES: Final = 4096
"""Images that a reconstruction may always contain: imprinted layers yield one image per bin."""

NUMBERS: Final = 2**28
"""Largest number of values in all claims of one unit: 1 GiB as float32, on disk and in the scorer."""

CLAIMS: Final = 4096
"""Largest number of claims of one unit."""

LETTERS: Final = 2**26
"""Largest text length of the non-tensor fields in all claims of one unit."""

Violations = Iterator[tuple[str, ...]]
"""What a claim needs, what was found instead, and perhaps how to fix it."""


def check_claims(claims: tuple[Claim, ...], *, view: View, unit: Unit, subject: str) -> None:
    """Raise unless ``claims`` are complete, finite, in range, not too many, and about ``unit``.

    Args:
        claims: returned by the attack.
        view: its input; defines the rounds and clients that claims may be about.
        unit: the unit that it was called for.
        subject: names the attack and the unit, for the error.

    Raises:
        BadValue: names the first violation.
    """
    for needs, got, *fix in _violations(claims, view, unit, subject):
        raise BadValue(subject, needs=needs, got=got, fix=fix[0] if fix else "correct the attack")


def _violations(claims: tuple[Claim, ...], view: View, unit: Unit, subject: str) -> Violations:
    yield from _check_kinds(claims)
    yield from _check_amount(claims)
    yield from _check_repeated(claims)
    for claim in claims:
        yield from _check_about(claim, view, unit)
        _check_tensors(claim, subject)
        yield from _check_inputs(claim, view)
        yield from _check_lengths(claim, view)
        yield from _check_sentences(claim, view)
        yield from _check_candidates(claim, view)


def _check_kinds(claims: Any) -> Violations:
    if not isinstance(claims, tuple):
        yield "a tuple of claims", type(claims).__name__
    if unknown := sorted({type(c).__name__ for c in claims if not _is_registered(c)}):
        yield f"claims: {', '.join(names('claims'))}", ", ".join(unknown)


def _is_registered(claim: Any) -> bool:
    """Whether the claim's class is the one registered under its kind, as which it is read back."""
    if not isinstance(claim, Claim) or claim.kind not in names("claims"):
        return False
    point = entry("claims", claim.kind)
    return (type(claim).__module__, type(claim).__qualname__) == (point.module, point.attr)


def _check_amount(claims: tuple[Claim, ...]) -> Violations:
    numbers = sum(t.numel() for claim in claims for t in tensors_of(claim).values())
    words = sum(
        len(repr(getattr(c, f.name))) for c in claims for f in fields(c) if f.name not in tensors_of(c)
    )
    if len(claims) > CLAIMS or numbers > NUMBERS or words > LETTERS:
        yield (
            f"at most {CLAIMS:,} claims with {NUMBERS:,} numbers and {LETTERS:,} letters",
            f"{len(claims):,} claims with {numbers:,} numbers and {words:,} letters",
            "claim less: what the attack is sure of",
        )


def _check_repeated(claims: tuple[Claim, ...]) -> Violations:
    """Reject two claims of one kind about the same subject, which would be two guesses."""
    stated: set[tuple[str, Any]] = set()
    for claim in claims:
        key = (type(claim).__name__, claim.about)
        if key in stated and claim.scored:
            yield (
                "one claim of a kind about the same rounds and client",
                f"several {key[0]} about rounds {list(claim.about.rounds)}, client {claim.about.client}",
                "put all inputs into one claim",
            )
        stated.add(key)


def _check_about(claim: Claim, view: View, unit: Unit) -> Violations:
    kind, rounds, client = type(claim).__name__, claim.about.rounds, claim.about.client
    possible = unit.rounds or tuple(r.round for r in view.rounds)
    if not rounds or len(set(rounds)) != len(rounds) or not set(rounds) <= set(possible):
        needs = f"claims about rounds of {_list_rounds(possible)}, each named once"
        yield needs, f"{kind} about rounds {_list_rounds(rounds)}"
    if unit.client is not None and client != unit.client:
        yield f"claims about client {unit.client}", f"{kind} about client {client}"
    if client is not None and client not in range(view.terms.clients):
        needs = f"a client from 0 to {view.terms.clients - 1}, or None for the whole cohort"
        yield needs, f"{kind} about client {client}"


def _list_rounds(rounds: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, rounds[:6]))}{', …' if len(rounds) > 6 else ''}]"


def _check_tensors(claim: Claim, subject: str) -> None:
    tensors = tensors_of(claim)
    if claim.may_be_empty:  # an empty claim is valid: the attack recovered nothing
        tensors = {name: t for name, t in tensors.items() if t.ndim == 0 or len(t)}
    check_finite(tensors, subject=f"{subject}: claim {type(claim).__name__}")


def _check_inputs(claim: Claim, view: View) -> Violations:
    inputs = tensors_of(claim).get("inputs")
    if inputs is None:
        return
    try:
        view.terms.architecture.inputs.check(inputs, subject="claim")
    except BadValue as error:
        yield error.needs, error.got, "project what the attack returns: terms.architecture.inputs.project"


def _check_sentences(claim: Claim, view: View) -> Violations:
    """Reject tokens that are not in the vocabulary, or in sentences that the model cannot read."""
    longest, words = view.terms.architecture.input_shape[0], vocabulary_of(view.terms.architecture.inputs)
    if isinstance(claim, Sequences):
        tokens, form = claim.tokens, f", sentences (B, L) of at most {longest} tokens"
        shaped = tokens.ndim == 2 and 1 <= tokens.shape[1] <= longest
    elif isinstance(claim, OccurredTokens):
        tokens, form = claim.ids, ", (T,)"
        shaped = tokens.ndim == 1
    else:
        return
    whole = tokens.dtype == torch.int64 and words is not None
    if not shaped or not whole or (words and bool(((tokens < 0) | (tokens >= words.size)).any())):
        needs = f"tokens below {words.size if words else 0:,} as int64{form}"
        yield needs, f"{tuple(tokens.shape)} of {tokens.dtype}"
    if isinstance(claim, OccurredTokens) and len(torch.unique(tokens)) < len(tokens):
        yield "every named token once", "some of them twice"
    lengths = {n: len(t) for n, t in tensors_of(claim).items()}
    if len(set(lengths.values())) > 1:
        yield "one confidence and source per sentence or token", str(lengths)


def _check_lengths(claim: Claim, view: View) -> Violations:
    tensors = tensors_of(claim)
    if isinstance(claim, Reconstruction | ClassRepresentatives):
        lengths = {n: len(t) for n, t in tensors.items() if n in ("inputs", "labels", "confidence", "source")}
        if len(set(lengths.values())) > 1:
            yield "one label, confidence and source per input", str(lengths)
    if isinstance(claim, ClientScores):
        lengths = {n: len(tensors[n]) for n in ("scores", "decisions")}
        if set(lengths.values()) != {view.terms.clients}:
            yield f"one score and one decision for each of {view.terms.clients} clients", str(lengths)


def _check_candidates(claim: Claim, view: View) -> Violations:
    """Reject more images or sentences than any method can recover from the update: the rest would be guesses.

    The scorer counts only the most confident, as many as there were examples; claims beyond this limit are
    not scored at all.
    """
    if not isinstance(claim, Reconstruction | Sequences):
        return
    what = "images" if isinstance(claim, Reconstruction) else "sentences"
    count = len(claim.inputs if isinstance(claim, Reconstruction) else claim.tokens)
    examples = max(_announced_count(claim, view, number) for number in claim.about.rounds)
    limit = max(CANDIDATES, CANDIDATES_PER_EXAMPLE * examples)
    if count > limit:
        needs = f"at most {limit:,} {what} for {examples} private examples"
        yield needs, f"{count:,} {what}", "claim those that the attack is surest of"


def _announced_count(claim: Claim, view: View, number: int) -> int:
    """Private examples of a round, or of one client's update in it, as announced in the messages."""
    one = next(r for r in view.rounds if r.round == number)
    if one.aggregate is not None:
        return one.aggregate.examples
    return sum(u.examples for c, u in one.updates.items() if claim.about.client in (None, c))
