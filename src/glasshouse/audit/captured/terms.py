"""Are the declared terms the real ones? Training that is done again on recorded batches says so.

Attacks that simulate a client's training assume the terms. Of a real federation these are declared by whoever
runs it, so they may be wrong. A test client recorded its batches and what came of them; the same batches,
trained on under the declared terms, must give the same. Where they do not, the terms are varied one by one
to say which of them is likely wrong.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, final

import torch
from torch import Tensor

from glasshouse.audit.captured.collect import sent_file
from glasshouse.audit.simulation.record import TermsCheck
from glasshouse.federation.client import LocalTraining
from glasshouse.models.build import build, load
from glasshouse.rng import Rng
from glasshouse.settings import Optimizer
from glasshouse.store import read_tensors
from glasshouse.tensors import norm, scale_tensors
from glasshouse.transcript.record import Transcript
from glasshouse.truth.record import Truth, Used
from glasshouse.wire import Batch, Broadcast, Terms

TOLERANCE: Final = 1e-3
"""Largest error that is rounding: L2 norm of what is off, as a share of the change that training made."""
UPDATES: Final = 8
"""Updates that are trained again, at most."""
MOMENTUM: Final = 0.9
DECAYS: Final = (1e-4, 5e-4, 1e-3, 1e-2)
FITTED: Final = 0.02
"""Error up to which a learning rate that was fitted counts as found."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One round of one test client.

    Attributes:
        terms: of the federation.
        broadcast: what the client received.
        used: rows of its steps.
        pool: what they are rows of.
        change: what its training made of the parameters.
    """

    terms: Terms
    broadcast: Broadcast
    used: Used
    pool: Batch
    change: Mapping[str, Tensor]

    def again(self, terms: Terms) -> Mapping[str, Tensor]:
        """The change that training under ``terms`` makes, on the same batches in the same order."""
        model = build(self.broadcast.architecture)
        load(model, self.broadcast.tensors)
        order = tuple(torch.tensor(step) for step in self.used.steps)
        how = LocalTraining.of(terms, round=self.broadcast.round)
        return replace(how, kind="delta", order=order)(model, self.pool, rng=Rng.root(0)).tensors

    def error(self, terms: Terms) -> float:
        """How far ``terms`` are from giving the change, as a share of it."""
        return _distance(self.change, self.again(terms))


def check_terms(capture: Path, transcript: Transcript, truth: Truth) -> TermsCheck:
    """Train again what test clients recorded, and say which declared term is likely wrong.

    Args:
        capture: its folder, with what was collected.
        transcript: of the capture.
        truth: of the capture.
    """
    cases = list(_cases(capture, transcript, truth))
    errors = [case.error(case.terms) for case in cases]
    worst = max(errors, default=0.0)
    suspect = next(filter(None, map(_miscounted, cases)), "")
    if worst > TOLERANCE and not suspect:
        suspect = _suspect(cases[errors.index(worst)])
    return TermsCheck(n=len(cases), error=worst, suspect=suspect)


def _cases(capture: Path, transcript: Transcript, truth: Truth) -> Iterator[Case]:
    records = {record.round: record for record in transcript.rounds}
    recorded = [key for key in sorted(truth.used) if sent_file(capture, *key).is_file()]
    for number, client in recorded[:UPDATES]:
        broadcast = records[number].received_by(client) if number in records else None
        if broadcast is None:
            continue
        names = LocalTraining.of(transcript.terms, round=number).parameters(build(broadcast.architecture))
        update = read_tensors(sent_file(capture, number, client))
        yield Case(
            terms=transcript.terms,
            broadcast=broadcast,
            used=truth.used[number, client],
            pool=truth.private,
            change={n: update[n] - broadcast.tensors[n] for n in names if n in update},
        )


def _miscounted(case: Case) -> str:
    """Whether there were other batches, or another number of them, than the terms say; empty: neither."""
    terms, sizes = case.terms, [len(step) for step in case.used.steps]
    if max(sizes) != terms.batch_size and len(sizes) > 1:
        return f"batch_size: declared {terms.batch_size}, but steps of {max(sizes)} examples were recorded"
    examples = len(case.used.rows())
    declared = terms.local_epochs * math.ceil(examples / terms.batch_size)
    if len(sizes) != declared:
        return (
            f"local_epochs: declared {terms.local_epochs}, so {declared} steps over {examples} examples, but "
            f"{len(sizes)} steps were recorded"
        )
    return ""


def _suspect(case: Case) -> str:
    """The declared term that is likely wrong, in words."""
    for words, other in _variants(case.terms):
        if case.error(other) <= TOLERANCE:
            return words
    return _scaled(case) or "no single term explains it: another loss or optimizer, or images that changed"


def _variants(terms: Terms) -> Iterator[tuple[str, Terms]]:
    """One term changed at a time."""
    how, options = terms.optimizer, {**terms.options, "dropout": True}
    yield "options.dropout: clients train in training mode", replace(terms, options=options)
    for momentum in sorted({0.0, MOMENTUM} - {how.momentum}):
        yield f"momentum: {momentum:g} fits", replace(terms, optimizer=Optimizer(momentum=momentum))
    if how.name != "sgd":
        yield "optimizer: sgd fits", replace(terms, optimizer=Optimizer(name="sgd"))
    if how.name != "adam":
        yield "optimizer: adam fits", replace(terms, optimizer=Optimizer(name="adam"))
    if how.name != "adamw":
        yield "optimizer: adamw fits", replace(terms, optimizer=Optimizer(name="adamw", weight_decay=0.01))
    for decay in DECAYS:
        other = how.model_copy(update={"weight_decay": decay})
        yield f"weight_decay: {decay:g} fits", replace(terms, optimizer=other)


def _scaled(case: Case) -> str:
    """Whether another learning rate, or one factor on the whole change, explains it; empty: neither."""
    declared, again = case.terms.learning_rate, case.again(case.terms)
    factor = _share(case.change, again)
    scaled = _distance(case.change, scale_tensors(again, factor))
    rate = declared * factor
    for _ in range(4):  # the change is not linear in the rate
        if rate <= 0:
            return ""
        rate *= _share(case.change, case.again(replace(case.terms, learning_rate=rate)))
    fitted = case.error(replace(case.terms, learning_rate=rate)) if rate > 0 else 1.0
    if fitted <= min(FITTED, scaled):
        return f"learning_rate: declared {declared:g}, about {rate:.3g} fits"
    if scaled <= TOLERANCE:
        return f"the change is {factor:.3g} times what the terms give: something scales it"
    return ""


def _share(change: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The factor on ``other`` that comes closest to ``change``."""
    along = sum(float((t.double() * other[n].double()).sum()) for n, t in change.items())
    return along / max(norm(other) ** 2, 1e-30)


def _distance(change: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    return norm({n: t.double() - other[n].double() for n, t in change.items()}) / max(norm(change), 1e-30)
