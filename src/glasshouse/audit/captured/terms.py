"""Check the declared terms of a real federation by repeating the training on recorded batches.

Attacks that simulate a client's training rely on the terms, which the operator of a real federation declares
and which may be wrong. A test client recorded its batches and the result of its training; training on the
same batches under the declared terms must give the same result. If not, the terms are varied one by one to
find the one that is probably wrong.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, final

import torch
from torch import Tensor

from glasshouse.audit.captured.collect import sent_file
from glasshouse.audit.simulation.record import TermsCheck
from glasshouse.federation.client import LocalTraining
from glasshouse.federation.unstated import Unstated, repeat, ways
from glasshouse.interfaces.modes import draws_at_random
from glasshouse.models.build import build, load
from glasshouse.rng import Rng
from glasshouse.settings import Optimizer, covers
from glasshouse.store import read_tensors
from glasshouse.tasks.usual import usual_tasks
from glasshouse.tensors import norm, scale_tensors
from glasshouse.transcript.record import Transcript
from glasshouse.truth.record import Truth, Used
from glasshouse.wire import Batch, Broadcast, Terms

TOLERANCE: Final = 1e-3
"""Largest error attributed to rounding: L2 norm of the error, relative to that of the change by training."""
UPDATES: Final = 8
"""Largest number of updates whose training is repeated."""
LATER: Final = 2
"""As many of them are left to later rounds, where there are any, which alone show what a client keeps."""
MOMENTUM: Final = 0.9
CLIPS: Final = (0.1, 0.5, 1.0, 5.0, 10.0)
PULLS: Final = (0.001, 0.01, 0.1, 1.0)
DECAYS: Final = (1e-4, 5e-4, 1e-3, 1e-2)
COARSE: Final = 0.5
"""Uploads of 16 bits whose rounding may be larger than this share of the change are left out."""
FITTED: Final = 0.02
"""Largest error at which a fitted learning rate is accepted."""


Suspect = tuple[str, str]
"""A term that is probably wrong, in words, and the assignment that corrects it (empty: unknown)."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One round of one test client.

    Attributes:
        client: its number.
        terms: of the federation.
        broadcast: what the client received.
        used: the rows of its steps.
        pool: the examples that the rows refer to.
        change: of the parameters by its training.
        rounding: largest relative error of ``change`` that the precision of the upload explains.
    """

    client: int
    terms: Terms
    broadcast: Broadcast
    used: Used
    pool: Batch
    change: Mapping[str, Tensor]
    rounding: float = 0.0

    def again(self, terms: Terms) -> Mapping[str, Tensor]:
        """The change by training under ``terms`` on the same batches in the same order."""
        model = build(replace(self.broadcast.architecture, task=terms.architecture.task))
        load(model, self.broadcast.tensors)
        order = tuple(torch.tensor(step) for step in self.used.steps)
        how = LocalTraining.of(terms, round=self.broadcast.round)
        after = replace(how, kind="delta", order=order)(model, self.pool, rng=Rng.root(0)).tensors
        return {name: t for name, t in after.items() if name in self.change}

    def error_of(self, way: Unstated, rate: float) -> float:
        """Relative error of the change by training in a way that no terms can state."""
        model = build(self.broadcast.architecture)
        load(model, self.broadcast.tensors)
        order = [torch.tensor(step) for step in self.used.steps]
        how = replace(LocalTraining.of(self.terms, round=self.broadcast.round), kind="delta")
        again = repeat(way, model, self.pool, order, how=how, rate=rate)
        known = {name: t for name, t in again.items() if name in self.change}
        return max(0.0, _distance(self.change, known) - self.rounding)

    def error(self, terms: Terms) -> float:
        """Relative error of the change by training under ``terms``, beyond what rounding explains."""
        return max(0.0, _distance(self.change, self.again(terms)) - self.rounding)


def check_terms(capture: Path, transcript: Transcript, truth: Truth) -> TermsCheck:
    """Repeat the training of test clients, and name the declared term that is probably wrong.

    Args:
        capture: its folder, with the collected ground truth.
        transcript: of the capture.
        truth: of the capture.
    """
    cases = list(_cases(capture, transcript, truth))
    errors = [case.error(case.terms) for case in cases]
    worst = max(errors, default=0.0)
    suspect, since = next(filter(None, map(_miscounted, cases)), None), 0
    if worst > TOLERANCE and suspect is None:
        # What a client's first round shows is no consequence of the rounds before it.
        since = min(c.broadcast.round for c, error in zip(cases, errors, strict=True) if error > TOLERANCE)
        here = {i: errors[i] for i, case in enumerate(cases) if case.broadcast.round == since}
        suspect = _keeps_state(cases) if since else None
        if suspect is None:
            suspect, since = _suspect(cases[max(here, key=here.__getitem__)]), 0
    words, fix = suspect or ("", "")
    return TermsCheck(n=len(cases), error=worst, suspect=words, fix=fix, since=since)


def _cases(capture: Path, transcript: Transcript, truth: Truth) -> Iterator[Case]:
    records = {record.round: record for record in transcript.rounds}
    recorded = [key for key in sorted(truth.used) if sent_file(capture, *key).is_file()]
    personal = transcript.terms.training.personal
    if personal:  # a client's own layers are known before its first round only
        recorded = list({client: (number, client) for number, client in reversed(recorded)}.values())
    for number, client in _chosen(recorded):
        broadcast = records[number].received_by(client) if number in records else None
        if broadcast is None:
            continue
        trained = LocalTraining.of(transcript.terms, round=number).parameters(build(broadcast.architecture))
        names = [name for name in trained if not covers(personal, name)]
        update = read_tensors(sent_file(capture, number, client))
        change = {n: update[n] - broadcast.tensors[n] for n in names if n in update}
        rounding = _rounding({n: update[n] for n in change}) / max(norm(change), 1e-30)
        if rounding < COARSE:  # else nothing can be told from this upload
            yield Case(
                client=client,
                terms=transcript.terms.of_client(client),
                broadcast=broadcast,
                used=truth.used[number, client],
                pool=truth.private,
                change=change,
                rounding=rounding,
            )


def _chosen(recorded: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """Those whose training is repeated: clients' first rounds, then later ones of the same clients.

    Args:
        recorded: (round, client), in the order of rounds.
    """
    firsts = sorted({client: (number, client) for number, client in reversed(recorded)}.values())
    looked, others = firsts[: UPDATES - LATER], firsts[UPDATES - LATER :]
    clients = {client for _, client in looked}
    # Of each client an unbroken beginning, as its state is followed from its first round.
    later = [key for key in recorded if key[1] in clients and key not in looked]
    return sorted([*looked, *later[:LATER], *others, *later[LATER:]][:UPDATES])


def _rounding(sent: Mapping[str, Tensor]) -> float:
    """Norm of the largest error by which numbers of 16 bits may differ from those that were rounded."""
    halves = {
        name: t.double().abs() * torch.finfo(t.dtype).eps / 2
        for name, t in sent.items()
        if t.is_floating_point() and t.dtype.itemsize <= 2
    }
    return norm(halves) if halves else 0.0


def _miscounted(case: Case) -> Suspect | None:
    """Batch sizes or numbers of steps that contradict the terms; None: they do not."""
    terms, sizes = case.terms, [len(step) for step in case.used.steps]
    if sizes[0] != max(sizes) or len(set(sizes)) > 2:  # an epoch's last batch may be smaller, no other
        said = ", ".join(map(str, sizes[:6]))
        return f"batches of {said} ... examples: drawn at random, as DP-SGD does, so nothing repeats them", ""
    if max(sizes) != terms.batch_size and len(sizes) > 1:
        words = f"batch_size: declared {terms.batch_size}, but steps of {max(sizes)} examples were recorded"
        return words, f"batch_size={max(sizes)}"
    times = Counter(row for step in case.used.steps for row in step)
    if len(set(times.values())) > 1 and len(sizes) == terms.steps(sum(sizes)):
        return None  # a sampler that draws with replacement: as many as there are, some of them twice
    examples = len(times)
    declared = terms.steps(examples)
    once = declared // terms.local_epochs
    if len(sizes) == declared:
        return None
    words = (
        f"local_epochs: declared {terms.local_epochs}, so {declared} steps over {examples} examples, but "
        f"{len(sizes)} steps were recorded"
    )
    return words, "" if len(sizes) % max(1, once) else f"local_epochs={len(sizes) // once}"


def _keeps_state(cases: Sequence[Case]) -> Suspect | None:
    """That clients make their optimizer once, outside the loop; None: rounds follow from that no better."""
    for client in {case.client for case in cases}:
        own = [case for case in cases if case.client == client]
        how = replace(LocalTraining.of(own[0].terms, round=own[0].broadcast.round), kind="delta")
        model = build(own[0].broadcast.architecture)
        kept = how.stepper(how.parameters(model).values())
        way = Unstated(words="an optimizer that is kept", optimizer=partial(_same, kept))
        for case in own:
            load(model, case.broadcast.tensors)  # into the parameters that the optimizer holds
            order = [torch.tensor(step) for step in case.used.steps]
            again = repeat(way, model, case.pool, order, how=how, rate=how.learning_rate)
            if _distance(case.change, {n: again[n] for n in case.change}) - case.rounding > TOLERANCE:
                return None
    return "the optimizer keeps its state from round to round (it is made once, outside the loop)", ""


def _same(kept: torch.optim.Optimizer, _parameters: object, _rate: float) -> torch.optim.Optimizer:
    return kept


def _suspect(case: Case) -> Suspect:
    """The declared term that is probably wrong, and how to correct it."""
    for words, fix, other in (*variants(case.terms), *_losses(case)):
        if case.error(other) <= TOLERANCE:
            return words, fix
    # One other term first, then any rate under any optimizer: the fewer changes, the likelier.
    for other in (case.terms, *_optimizers(case.terms)):
        if (rate := _fitted_rate(case, other)) is not None:
            return _another_rate(case.terms, other, rate)
    for way in ways("delta"):
        for rate in dict.fromkeys((case.terms.learning_rate, *way.rates)):
            if case.error_of(way, rate) <= TOLERANCE:
                at = f" with learning_rate {rate:g}" if way.optimizer else ""
                return f"{way.words}{at} fits, which no terms can state: attacks do not repeat it", ""
    # What no term explains may be a factor on the whole change, or draws that nobody repeats.
    again = case.again(case.terms)
    factor = _share(case.change, again)
    if _distance(case.change, scale_tensors(again, factor)) <= TOLERANCE:
        return f"the change is {factor:.3g} times what the terms give: something scales it", ""
    inputs = case.pool.inputs[case.used.rows()][:2]
    if draws_at_random(build(case.broadcast.architecture), inputs, case.terms.training):
        return "the network draws at random, as dropout does, and nothing repeats its draws", ""
    return "no single term explains it: another loss or optimizer, or images that changed", ""


def variants(terms: Terms) -> Iterator[tuple[str, str, Terms]]:
    """Terms with one of them changed, each with a description and the assignment that makes it."""
    how, training = terms.optimizer, terms.training
    for mode in ("training", "evaluation"):
        if mode != training.mode:
            other = training.model_copy(update={"mode": mode})
            yield f"training.mode: {mode} fits", f"training.mode={mode}", replace(terms, training=other)
    reduction = "sum" if training.reduction == "mean" else "mean"
    other = training.model_copy(update={"reduction": reduction})
    fix = f"training.reduction={reduction}"
    yield f"training.reduction: {reduction} fits", fix, replace(terms, training=other)
    for leftover in ("mean", "share", "dropped") if training.accumulate > 1 else ():
        other = training.model_copy(update={"leftover": leftover})
        fix = f"training.leftover={leftover}"
        yield f"training.leftover: {leftover} fits", fix, replace(terms, training=other)
    # The usual values of loops that are found in practice; a free search would fit anything.
    for key, values in {"clip_norm": CLIPS, "proximal": PULLS}.items():
        for value in values:
            other = training.model_copy(update={key: value})
            setting = f"training.{key}"
            yield f"{setting}: {value:g} fits", f"{setting}={value:g}", replace(terms, training=other)
    for momentum in sorted({0.0, MOMENTUM} - {how.momentum}):
        fix = f"optimizer.momentum={momentum:g}"
        yield f"momentum: {momentum:g} fits", fix, replace(terms, optimizer=Optimizer(momentum=momentum))
    for usual in (Optimizer(name="sgd"), Optimizer(name="adam"), Optimizer(name="adamw", weight_decay=0.01)):
        if usual.name != how.name:
            yield f"optimizer: {usual.name} fits", _assignment(usual), replace(terms, optimizer=usual)
    for decay in DECAYS:
        decayed = how.model_copy(update={"weight_decay": decay})
        fix = f"optimizer.weight_decay={decay:g}"
        yield f"weight_decay: {decay:g} fits", fix, replace(terms, optimizer=decayed)


def _optimizers(terms: Terms) -> Iterator[Terms]:
    """Terms with the optimizers that people use, whose rates are then fitted, too."""
    for usual in (
        Optimizer(),
        Optimizer(momentum=MOMENTUM),
        Optimizer(name="adam"),
        Optimizer(name="adamw", weight_decay=0.01),
    ):
        if usual != terms.optimizer:
            yield replace(terms, optimizer=usual)


def _assignment(optimizer: Optimizer) -> str:
    """The assignment that states an optimizer."""
    stated = {"name": optimizer.name, **optimizer.model_dump(exclude_defaults=True)}
    return f"optimizer={{{', '.join(f'{key} = {json.dumps(value)}' for key, value in stated.items())}}}"


def _losses(case: Case) -> Iterator[tuple[str, str, Terms]]:
    """Terms with another loss of the same targets, each with a description and its assignment."""
    architecture, task = case.terms.architecture, case.terms.architecture.task
    if not task.one_label:
        return
    # Of the classes that the client holds; a constant factor would be no other loss but another rate.
    labels = case.pool.labels[case.used.rows()]
    for words, settings, other in usual_tasks(architecture.classes, labels, scaled=False):
        if other != task:
            stated = [f"task.{key}={json.dumps(value)}" for key, value in settings.items()]
            fix = " --set ".join(stated or ["task.criterion=cross_entropy"])
            yield (
                f"task: {words} fits",
                fix,
                replace(case.terms, architecture=replace(architecture, task=other)),
            )


def _fitted_rate(case: Case, terms: Terms) -> float | None:
    """The learning rate under which terms explain the change, in few digits; None: none does."""
    again = case.again(terms)
    factor = _share(case.change, again)
    scaled = _distance(case.change, scale_tensors(again, factor))
    rate = terms.learning_rate * factor
    for _ in range(4):  # the change is not linear in the rate
        if rate <= 0:
            return None
        rate *= _share(case.change, case.again(replace(terms, learning_rate=rate)))
    if rate <= 0 or case.error(replace(terms, learning_rate=rate)) > min(FITTED, scaled):
        return None
    # People choose round rates: the roundest one that is exact, else the fitted one.
    for digits in (1, 2, 3):
        rounded = float(f"{rate:.{digits}g}")
        if case.error(replace(terms, learning_rate=rounded)) <= TOLERANCE:
            return rounded
    return rate


def _another_rate(declared: Terms, other: Terms, rate: float) -> Suspect:
    """That another rate fits, under the declared optimizer or another."""
    if other.optimizer == declared.optimizer:
        words = f"learning_rate: declared {declared.learning_rate:g}, about {rate:.3g} fits"
        return words, f"learning_rate={rate:.6g}"
    words = f"optimizer: {other.optimizer.name} with learning_rate about {rate:.3g} fits"
    return words, f"{_assignment(other.optimizer)} --set learning_rate={rate:.6g}"


def _share(change: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The factor for ``other`` that fits ``change`` best (least squares)."""
    along = sum(float((t.double() * other[n].double()).sum()) for n, t in change.items())
    return along / max(norm(other) ** 2, 1e-30)


def _distance(change: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The difference relative to ``change``; infinite where training diverged, which fits nothing."""
    error = norm({n: t.double() - other[n].double() for n, t in change.items()}) / max(norm(change), 1e-30)
    return math.inf if math.isnan(error) else error
