"""Every claim against every victim and every held-out example: what exchange and single victims rest on.

One row is one claim about one update, reduced to its best candidate for each example; one column is one
example. At most ``MOST_VICTIMS`` examples are compared, in the order of their rounds and clients.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.attacks.base import About, Reconstruction
from glasshouse.audit.scoring.measure import measure
from glasshouse.audit.scoring.pair import can_score, cross_claims
from glasshouse.audit.scoring.read import Run
from glasshouse.audit.sealed import is_foreign
from glasshouse.cache import digest, once
from glasshouse.errors import BadValue, NothingClaimed
from glasshouse.metrics.base import Metric, ScoreContext
from glasshouse.metrics.statistics.exchange import group_alike
from glasshouse.metrics.statistics.units import Numbers
from glasshouse.metrics.statistics.victims import exchangeable
from glasshouse.modalities.base import Modality, Wanted
from glasshouse.wire import Batch

__all__ = ["Crossing", "Table", "best_of", "claims_about_examples", "crossings", "share_alike", "tables"]

T = TypeVar("T")

# | number       | what it trades                           | which measurement set it     | where repeated |
# |--------------|------------------------------------------|------------------------------|----------------|
# | MOST_VICTIMS | power, memory of n (n + M) scores        | 300 x 1,100 images take 2 s  | docs/result.md |
# | MOST_CROSSED | power of few, n n scores one by one      | 60 x 60 labels take 0.2 s    | docs/result.md |
# | MOST         | candidates of a claim without pairwise   | what a batch of victims needs | -              |
MOST_VICTIMS: Final = 300
MOST_CROSSED: Final = 60
MOST: Final = 64
HALF: Final = 0.5
"""Share of an update's examples with near-duplicates in another from which the two cannot be told apart."""
SHIFT_HELDOUT: Final = 400
"""Held-out examples at most among which private ones are tested for being exchangeable."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """The scores of one attack's claims in one federation; larger leaks more, whatever the metric.

    Attributes:
        names: of the victims, (n,).
        identities: of the private data behind each victim's claim, (n,).
        places: position of each victim among the examples of its update that are judged, (n,).
        matches: (k, n), claim against private example.
        heldout: (k, M), claim against held-out example.
        claim_of: (n,), the claim about each.
        strata: (n,), labels where there is one per example, else zeros.
        heldout_strata: (M,).
        alike: (n,), equal for near-duplicates.
        shared: (n,), names of what makes victims one: their update, person, picture and near-duplicates.
        baseline: scores of a guess that knows each victim's label, (n,) and (n, M); None: nobody guesses so.
        shift_p: of private and held-out examples being exchangeable.
    """

    names: tuple[str, ...]
    identities: tuple[str, ...]
    places: NDArray[np.int64]
    matches: Numbers
    heldout: Numbers
    claim_of: NDArray[np.int64]
    strata: NDArray[np.int64]
    heldout_strata: NDArray[np.int64]
    alike: NDArray[np.int64]
    shared: tuple[frozenset[str], ...]
    baseline: tuple[Numbers, Numbers] | None
    shift_p: float

    def updates(self) -> Numbers:
        """Mean score of each claim over the examples of each claim's update, (k, k)."""
        member = (self.claim_of[:, None] == np.arange(len(self.matches))[None]).astype(np.float64)
        return np.asarray(self.matches @ (member / member.sum(0)))

    def alike_updates(self) -> NDArray[np.int64]:
        """Groups of updates, (k,): of alike ones half of one's examples have near-duplicates in the other."""
        count = len(self.matches)
        member = self.claim_of[:, None] == np.arange(count)[None]  # (n, k)
        same = self.alike[:, None] == self.alike[None]  # (n, n)
        # Share of the examples of one update (row) that have a near-duplicate in another (column).
        beside = same.astype(np.float64) @ member > 0  # (n, k)
        shares = member.T.astype(np.float64) @ beside / member.sum(0)[:, None]
        return group_alike(1 - np.maximum(shares, shares.T), near=1 - HALF)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Crossing:
    """The scores of every claim of one federation with the truth of every victim; larger leaks more.

    For claims that are not compared example by example, such as the labels of an update.

    Attributes:
        matches: (k, k), claim against victim.
        alike: (k,), equal for victims whose truths are equal.
        strata: (k,), equal for victims whose examples have the same labels; None: the claims are about these,
            or all have the same.
    """

    matches: Numbers
    alike: NDArray[np.int64]
    strata: NDArray[np.int64] | None = None

    def updates(self) -> Numbers:
        """As of a :class:`Table`: every claim is about one update."""
        return self.matches

    def alike_updates(self) -> NDArray[np.int64]:
        """As of a :class:`Table`."""
        return self.alike


def crossings(metric: Metric, runs: Sequence[Run], *, of_examples: bool = False) -> Iterator[Crossing | None]:
    """The crossing of every run; None where claims are of another kind, or more than ``MOST_CROSSED``.

    Where there are so many, a test over pairs alone has power.

    Args:
        metric: of the scores.
        runs: of one attack.
        of_examples: also of claims that hold examples, such as sentences, where no table compares them. What
            is proved needs no such test.
    """
    for run in runs:
        inputs = metric.against == "inputs"
        proved = any(type(claim).proofs for claim in run.claims if can_score(type(claim), metric))
        fits = not inputs or (of_examples and not proved)
        crossed = cross_claims(run.claims, metric, run.ground, most=MOST_CROSSED) if fits else []
        sides = [row for _, row in crossed]
        if len(sides) < 2:
            yield None
            continue
        scored = [measure(metric, row, run.ground.context) for row in sides]
        numbers = [[one.mean() for one in row if not isinstance(one, NothingClaimed)] for row in scored]
        # With a hole, rows could not change places.
        if any(len(row) < len(sides) for row in numbers):
            yield None
            continue
        # From here on, up is worse for privacy.
        sign = 1.0 if metric.higher_leaks else -1.0
        strata = _numbered(torch.sort(target.batch.labels, 0).values for target, _ in crossed)
        yield Crossing(
            matches=sign * np.array(numbers, dtype=np.float64),
            alike=_numbered(side.truth for side in sides[0]),
            strata=strata if inputs and strata.any() else None,
        )


def _numbered(tensors: Iterable[Tensor]) -> NDArray[np.int64]:
    """A number for each tensor, equal for equal ones."""
    groups: dict[bytes, int] = {}
    keys = (one.cpu().numpy().tobytes() for one in tensors)
    return np.array([groups.setdefault(key, len(groups)) for key in keys], dtype=np.int64)


def tables(metric: Metric, runs: Sequence[Run], *, singles: bool = True) -> Iterator[Table | None]:
    """The table of every run that has held-out examples and claims about examples; else None.

    Args:
        metric: compares examples (``pairwise`` or ``score``).
        runs: of one attack.
        singles: also compare with held-out examples, which only verdicts on single victims need.
    """
    for run in runs:
        yield _table(metric, run, singles=singles)


def _table(metric: Metric, run: Run, *, singles: bool) -> Table | None:
    told = [(one, _strangers(run, one)) for one in claims_about_examples(run)]
    claims, kept = [one for one, own in told if len(own)], [own for _, own in told if len(own)]
    heldout = run.ground.heldout
    if not claims or heldout is None or not len(heldout):
        return None
    if not singles:
        heldout = heldout.pick(torch.arange(0))
    sign = 1.0 if metric.higher_leaks else -1.0
    everybody = [run.ground.target(number, about.client).batch for about, number, _ in claims]
    batches = [batch.pick(own) for batch, own in zip(everybody, kept, strict=True)]
    examples = torch.cat([batch.inputs for batch in batches])
    everyone = torch.cat([examples, heldout.inputs])
    # Each claim against all examples at once: the private ones first.
    rows = [sign * best_of(metric, inputs, everyone, context=run.ground.context) for _, _, inputs in claims]
    scores = np.stack(rows)
    n, owners = len(examples), np.repeat(np.arange(len(claims)), [len(batch) for batch in batches])
    known = heldout.labels.ndim == 1 and all(batch.labels.ndim == 1 for batch in batches)
    labels = torch.cat([batch.labels for batch in batches]) if known else torch.zeros(n)
    others = heldout.labels if known else torch.zeros(len(heldout))
    modality = run.book.modality
    places = np.concatenate([np.arange(len(batch)) for batch in batches])
    shift_p = _shift_p(run, examples, heldout.inputs[:SHIFT_HELDOUT]) if singles else 1.0
    alike = _of_examples("alike", run, examples, partial(_group, modality, examples))
    return Table(
        names=tuple(_name(*claims[c][:2], int(kept[c][i])) for c, i in zip(owners, places, strict=True)),
        identities=tuple(run.ground.truth.identity(claims[c][1], claims[c][0].client) for c in owners),
        places=places,
        matches=scores[:, :n],
        heldout=scores[:, n:],
        claim_of=owners,
        strata=labels.long().numpy(),
        heldout_strata=others.long().numpy(),
        alike=alike,
        shared=tuple(_shared(run, claims, batches, alike)),
        baseline=_baseline(metric, run, labels, everyone) if known and singles else None,
        shift_p=shift_p,
    )


def _strangers(run: Run, claim: tuple[About, int, Tensor]) -> Tensor:
    """Positions of the examples that nobody has without the update: the others are not judged."""
    about, number, _ = claim
    batch = run.ground.target(number, about.client).batch
    found = run.book.strangers(batch.inputs)
    return torch.arange(len(batch)) if found is None else torch.from_numpy(found)


def _shared(
    run: Run, claims: Sequence[tuple[About, int, Tensor]], batches: Sequence[Batch], alike: NDArray[np.int64]
) -> Iterator[frozenset[str]]:
    """What each example shares with others that it is no independent victim beside."""
    groups = iter(alike.tolist())
    for (about, number, _), batch in zip(claims, batches, strict=True):
        update = f"{run.ground.run}, update {run.ground.truth.identity(number, about.client)}"
        for row in range(len(batch)):
            names = {update, f"{run.ground.run}, alike {next(groups)}", digest(batch.inputs[row])}
            if batch.groups is not None:
                names.add(f"person {int(batch.groups[row])}")
            yield frozenset(names)


def _baseline(metric: Metric, run: Run, labels: Tensor, everyone: Tensor) -> tuple[Numbers, Numbers] | None:
    """Scores of the best guess by each victim's label, on the victim and on every held-out example."""
    book, n = run.book, len(labels)
    guessers = [null for null in book.modality.nulls() if null.knows == "label"]
    if book.auxiliary is None or not guessers:
        return None
    sign, wanted = 1.0 if metric.higher_leaks else -1.0, Wanted(count=n, labels=labels)
    best: Numbers | None = None
    for null in guessers:
        guesses = null.guess(book.auxiliary, wanted, book.rng.child(f"table/{null.name}")).inputs
        table = sign * each_of(metric, guesses, everyone, context=run.ground.context)
        best = table if best is None else np.maximum(best, table)
    assert best is not None
    return np.diagonal(best[:, :n]).copy(), best[:, n:]


def _group(modality: Modality, examples: Tensor) -> NDArray[np.int64]:
    """Groups of near-duplicates."""
    return group_alike(modality.distance(examples, examples).numpy(), near=modality.near)


def _of_examples(what: str, run: Run, examples: Tensor, work: Callable[[], T], *more: object) -> T:
    """What ``work`` says of examples: the same for every metric, attack and cell that meets them."""
    modality = run.book.modality
    # Of another package's, nobody knows whether its representation says all that its distances depend on.
    listed = None if is_foreign(modality) else [what, repr(modality), examples, *more]
    return once(listed, work)


def _shift_p(run: Run, examples: Tensor, heldout: Tensor) -> float:
    """The p-value of private and held-out examples being exchangeable."""
    work = partial(_test_shift, run, examples, heldout)
    return _of_examples("shift", run, examples, work, heldout, run.book.rng.key)


def _test_shift(run: Run, examples: Tensor, heldout: Tensor) -> float:
    everyone = torch.cat([examples, heldout])
    distances = run.book.modality.distance(everyone, everyone).sqrt().numpy()
    private = np.arange(len(everyone)) < len(examples)
    return exchangeable(distances, private, rng=run.book.rng.child("exchangeable"))


def _name(about: About, number: int, place: int) -> str:
    client = "" if about.client is None else f", client {about.client}"
    return f"round {number}{client}, example {place + 1}"


def claims_about_examples(run: Run) -> Iterator[tuple[About, int, Tensor]]:
    """Every round of every claim with an example, with the candidates that count; each private data once."""
    seen: set[str] = set()
    examples = 0
    for claim in run.claims:
        if not isinstance(claim, Reconstruction) or not len(claim.inputs):
            continue
        inputs = claim.part("inputs", run.ground.allowed(claim.about))
        assert inputs is not None  # a reconstruction has inputs
        for number in claim.about.rounds:
            identity = run.ground.truth.identity(number, claim.about.client)
            size = len(run.ground.target(number, claim.about.client).batch)
            if identity in seen or examples + size > MOST_VICTIMS:
                continue
            seen.add(identity)
            examples += size
            yield claim.about, number, inputs


def each_of(
    metric: Metric, candidates: Tensor, examples: Tensor, *, context: ScoreContext, most: int | None = None
) -> Numbers:
    """The score of each candidate with each example, (R, N); of the first ``most`` without ``pairwise``.

    Raises:
        BadValue: the metric does not give one number per example.
    """
    table = metric.pairwise(candidates, examples, context=context)
    if table is not None:
        return table
    rows = []
    for one in candidates[:most]:
        row = metric.score(one.expand(len(examples), *one.shape), examples, context=context)
        if row.shape != (len(examples),):
            raise BadValue(
                f"metric '{metric.wording.label}'",
                needs=f"one number per example from score: {len(examples)}",
                got=f"shape {row.shape}",
                fix="return one for each; a metric of whole batches says by pairwise what each pair is worth",
            )
        rows.append(row)
    return np.stack(rows)


def best_of(metric: Metric, candidates: Tensor, examples: Tensor, *, context: ScoreContext) -> Numbers:
    """The best score of any candidate with each example, (N,)."""
    table = each_of(metric, candidates, examples, context=context, most=MOST)
    return np.asarray(table.max(0) if metric.higher_leaks else table.min(0), dtype=np.float64)


def share_alike(runs: Sequence[Run]) -> float:
    """The share of the victims' examples that have a near-duplicate among the other victims of their run."""
    alike = []
    for run in runs:
        near = run.book.modality.near
        keys = sorted(run.ground.truth.used)
        batches = [run.ground.target(*key).batch.inputs for key in keys[:MOST_VICTIMS]]
        if len(batches) < 2:
            continue
        owners = torch.repeat_interleave(torch.arange(len(batches)), torch.tensor([len(b) for b in batches]))
        distances = run.book.modality.distance(torch.cat(batches), torch.cat(batches))
        distances[owners[:, None] == owners[None]] = torch.inf
        alike.append((distances.min(1).values <= near).double().mean())
    return float(torch.stack(alike).mean()) if alike else 0.0
