"""Do claims hold what no score sees: a mirror image of their own victim, or one example under all names?

Asked only where nothing else keeps "no leak found" from being said, or a limit from holding: nothing is
scored, but such silence is none.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from glasshouse.audit.scoring.pair import pair_claims
from glasshouse.audit.scoring.read import Run
from glasshouse.audit.scoring.table import MOST_VICTIMS, SHIFT_HELDOUT, claims_about_examples
from glasshouse.errors import BadValue
from glasshouse.metrics.base import Metric
from glasshouse.metrics.statistics.recognised import Pair, dependence_p, recognised_p
from glasshouse.metrics.statistics.strangers import copied_p
from glasshouse.metrics.statistics.units import Numbers
from glasshouse.modalities.base import Modality
from glasshouse.tensors import all_finite

__all__ = ["CHANGES", "COUNTED", "CROSSED", "holds_copy", "recognised_form"]

CHANGES: Final = "they change with the victim"
CROSSED: Final = "a part of them changes with another part of the victim"
ENOUGH: Final = 2
"""Parts, the whole example among them, up to which there are none to take for one another."""
COUNTED: Final = "counts"
"""Claims about an update as a whole: how many of its examples have each label."""


def recognised_form(metric: Metric, runs: Sequence[Run], *, level: float) -> str:
    """The form in which claims are most like their own victims, in words; "": in none that is known.

    Every claim is compared with its own examples, and with private examples of others and held-out ones of
    the same label. Beside all forms that are known, claims may change with their victims in any other. The
    level is shared by the forms. Of counts of labels only the last is asked: they may have other names.

    Args:
        metric: that sees nothing in the claims.
        runs: of one attack.
        level: of the test.
    """
    counted = metric.against == COUNTED
    trials: dict[str, list[tuple[bool, float]]] = {}
    for run in () if counted else runs:
        for form, first, chance in _trials(run):
            trials.setdefault(form, []).append((first, chance))
    p_values = {form: recognised_p(*map(np.array, zip(*rows, strict=True))) for form, rows in trials.items()}
    asked = (_counted_apart(metric, run) if counted else _apart(run) for run in runs)
    if blocks := [block for block in asked if block is not None]:
        parts, strata = zip(*blocks, strict=True)
        same, other = dependence_p(parts, strata, rng=runs[0].book.rng.child("dependence"))
        p_values[CHANGES] = same
        if max(map(len, parts)) > ENOUGH:
            p_values[CROSSED] = other
    form = min(p_values, key=lambda name: p_values[name], default="")
    return form if form and p_values[form] * len(p_values) <= level else ""


def _apart(run: Run) -> tuple[list[Pair], NDArray[np.int64]] | None:
    """By part, how far claims are from one another, and the truths that they are about; and their strata.

    Updates are exchanged that have equally many examples of each label. None: no two can be.
    """
    claims, modality = list(claims_about_examples(run)), run.book.modality
    batches = [run.ground.target(number, about.client).batch for about, number, _ in claims]
    kinds: dict[bytes, int] = {}
    keys = (torch.sort(b.labels).values if b.labels.ndim == 1 else torch.zeros(len(b)) for b in batches)
    strata = np.array([kinds.setdefault(key.numpy().tobytes(), len(kinds)) for key in keys], dtype=np.int64)
    if len(kinds) == len(claims):
        return None
    sides = ([inputs for _, _, inputs in claims], [batch.inputs for batch in batches])
    left, right = (_between(side, modality) for side in sides)
    return list(zip(left, right, strict=True)), strata


def _counted_apart(metric: Metric, run: Run) -> tuple[list[Pair], NDArray[np.int64]] | None:
    """As :func:`_apart`, of claimed and true counts of labels: updates of one size are exchanged."""
    # The same private data in another round are the same victim.
    pairs = {one.victim: one for one in pair_claims(run.claims, metric, run.ground) if one.answered}
    every = (one.own for one in list(pairs.values())[:MOST_VICTIMS])
    sides = [(own.claimed, own.truth) for own in every if own is not None]
    sizes = np.array([int(truth.sum()) for _, truth in sides], dtype=np.int64)
    if len(np.unique(sizes)) == len(sides):
        return None
    # Claims may name labels that no other one does.
    left, right = (pad_sequence(list(side), batch_first=True).double() for side in zip(*sides, strict=True))
    return [(torch.cdist(left, left, p=1).numpy(), torch.cdist(right, right, p=1).numpy())], sizes


def _between(sets: Sequence[Tensor], modality: Modality) -> Iterator[Numbers]:
    """Energy distances between sets of examples, (n, n), by part: of single ones their distance."""
    owners = np.repeat(np.arange(len(sets)), [len(one) for one in sets])
    member = (owners[:, None] == np.arange(len(sets))[None]).astype(np.float64)
    shares = member / member.sum(0)
    for apart in modality.apart(torch.cat([*sets])):
        _refuse_unknown(modality, "distances", apart)
        means = shares.T @ apart.sqrt().cpu().numpy() @ shares
        within = np.diagonal(means)
        yield np.asarray(means - (within[:, None] + within[None]) / 2, dtype=np.float64)


def holds_copy(runs: Sequence[Run], *, level: float) -> bool:
    """Whether some claim is a copy of a private example, whoever it was claimed of.

    Args:
        runs: of one attack; the level is shared by them.
        level: of the test.
    """
    return any(_copied_p(run) * len(runs) <= level for run in runs)


def _copied_p(run: Run) -> float:
    claims, heldout = list(claims_about_examples(run)), run.ground.heldout
    if not claims or heldout is None or not len(heldout):
        return 1.0
    batches = [run.ground.target(number, about.client).batch for about, number, _ in claims]
    known = heldout.labels.ndim == 1 and all(batch.labels.ndim == 1 for batch in batches)
    parts = [*batches, heldout]
    everyone = torch.cat([part.inputs for part in parts])
    labels = torch.cat([part.labels for part in parts]) if known else torch.zeros(len(everyone))
    modality = run.book.modality
    # One claim for all counts once, whatever it is claimed of.
    different = {one.cpu().numpy().tobytes(): one for _, _, inputs in claims for one in inputs}
    candidates = torch.stack(list(different.values()))
    distances = modality.distance(candidates, everyone).sqrt().cpu().numpy()
    some = heldout.inputs[:SHIFT_HELDOUT]
    again = modality.distance(some, some).fill_diagonal_(torch.inf).min(1).values <= modality.near
    return copied_p(
        distances,
        np.arange(len(everyone)) < len(everyone) - len(heldout),
        labels.cpu().numpy(),
        lambda one: (modality.distance(everyone[one][None], everyone)[0] <= modality.near).cpu().numpy(),
        recurring=float(again.double().mean()),
    )


def _trials(run: Run) -> Iterator[tuple[str, bool, float]]:
    """For every form, claim and label: whether an own example comes first, and the chance of that."""
    claims, heldout = list(claims_about_examples(run)), run.ground.heldout
    if not claims or heldout is None or not len(heldout):
        return
    batches = [run.ground.target(number, about.client).batch for about, number, _ in claims]
    known = heldout.labels.ndim == 1 and all(batch.labels.ndim == 1 for batch in batches)
    everyone = torch.cat([*(batch.inputs for batch in batches), heldout.inputs])
    labels = torch.cat([*(batch.labels for batch in batches), heldout.labels]) if known else None
    strata = torch.zeros(len(everyone)).numpy() if labels is None else labels.numpy()
    owners = np.repeat(np.arange(len(claims)), [len(batch) for batch in batches])
    owners = np.concatenate([owners, np.full(len(heldout), -1)])
    modality = run.book.modality
    # Near-duplicates of a claim's own examples are no others.
    private = everyone[: int((owners >= 0).sum())]
    for number, (_, _, inputs) in enumerate(claims):
        own = owners == number
        beside = (modality.distance(private[own[: len(private)]], everyone) <= modality.near).any(0).numpy()
        for form, scores in _best(modality, inputs, everyone).items():
            for label in np.unique(strata[own]):
                among, others = own & (strata == label), ~own & ~beside & (strata == label)
                if others.any():
                    first = bool(scores[among].max() > scores[others].max())
                    yield form, first, float(among.sum() / (among.sum() + others.sum()))


def _best(modality: Modality, inputs: Tensor, everyone: Tensor) -> Mapping[str, Numbers]:
    """By form, how like the most like candidate is to each example, (N,)."""
    found: Mapping[str, Tensor] = modality.likenesses(inputs, everyone)
    for form, scores in found.items():
        _refuse_unknown(modality, f"likenesses '{form}'", scores)
    return {form: _rounded(scores.amax(0).double().cpu().numpy()) for form, scores in found.items()}


def _refuse_unknown(modality: Modality, what: str, numbers: Tensor) -> None:
    """Refuse numbers that are none: what cannot be asked is no silence.

    Raises:
        BadValue: some are not finite.
    """
    if not all_finite(numbers):
        raise BadValue(
            f"modality '{modality.name}'",
            needs=f"finite {what}, or no leak can be called absent",
            got=f"{int((~torch.isfinite(numbers)).sum())} of {numbers.numel()} not finite",
            fix="return a number for every pair, also of constant or empty examples",
        )


def _rounded(scores: NDArray[np.float64]) -> Numbers:
    """Scores without their last digits: equal examples tie, whatever their order of summation."""
    return np.asarray(np.round(scores, 9))
