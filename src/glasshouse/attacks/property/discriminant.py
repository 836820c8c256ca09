"""The detector in the limit of infinitely many shadow clients, exact for clients that take a single step.

An update is then the mean of B independent per-example gradients, so its mean and covariance with and without
the property follow from those of the gradients, without sampling. Fisher's discriminant of the two,

    direction = (C / B + l I)^-1 (mean+ - mean-),   C = covariance of the per-example gradients,

lies in the span of the pool's gradients, and requires their Gram matrix (E x E) and one solve.

Where clients take several steps, the direction is that of the first one, which is how the example pulls at
the broadcast; how far it separates clients is measured on held-out shadow clients that take every step.

Our own. The paper fits a logistic regression to sampled shadow clients; with a few hundred of them in tens
of thousands of coordinates its direction is mostly noise, and with dropout and steep gradients its feature
becomes heavy-tailed late in training (docs/log.md).

Shape letters: E examples of the pool, B examples of a client, S shadow clients, z numbers in an update.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from glasshouse.attacks.property.detector import TINY, Detector
from glasshouse.attacks.property.per_example import PerExample, shares_gradients
from glasshouse.attacks.property.properties import Pairs
from glasshouse.attacks.property.shadow import follows_gradients, steps_of, updates
from glasshouse.errors import Inapplicable
from glasshouse.rng import Rng
from glasshouse.wire import Terms


def check_means(model: nn.Module, terms: Terms, pairs: Pairs) -> None:
    """Refuse updates whose steps are not means of the gradients of all of a client's examples.

    Raises:
        Inapplicable: clients step on a part of their examples, or the property does more than select the
            examples in the mean and its factor.
    """
    examples, conduct = pairs.negative.rows.shape[1], pairs.conduct
    faults = {
        f"sends = '{terms.sends}'": terms.sends not in ("gradient", "delta"),
        f"optimizer {', '.join(sorted(terms.optimizer.traits))}": not follows_gradients(terms),
        f"batches of {terms.batch_size} of {examples} examples": terms.batch_size < examples,
        "other layers": not shares_gradients(model, terms),
        "a property that does not say it": pairs.negative.shares is None or pairs.positive.shares is None,
        "a deviation that is no factor": conduct.ascend or conduct.behaviour is not None,
    }
    if any(faults.values()):
        raise Inapplicable(
            "detector 'discriminant'",
            needs="steps of plain sgd on all of a client's examples, gradients or deltas of linear "
            "layers and ordinary convolutions, and a property that says which examples make the difference",
            got=", ".join(fault for fault, present in faults.items() if present),
            fix="set attacks.method.detector = 'lbfgs'",
        )


def fit_discriminant(
    model: nn.Module,
    terms: Terms,
    fresh: Pairs,
    heldout: Pairs,
    *,
    shrinkage: float,
    round: int,
    rng: Rng,
) -> tuple[Detector, Tensor]:
    """The detector from the pool of ``fresh``, and the features of the held-out shadow clients.

    Args:
        model: loaded with the broadcast.
        fresh: only its pool and shares are used, not its samples.
        heldout: shadow clients on other examples.
        shrinkage: l, as a share of the trace of C / B.
        rng: for dropout masks.
        terms: the trained parameters, and the clients' optimizer.
        round: for the learning-rate schedule.

    Returns:
        the detector; (2, S): features of the held-out clients without the property, then with it.

    Raises:
        Inapplicable: see :func:`check_means`.
    """
    check_means(model, terms, fresh)
    negative, positive = fresh.negative.shares, fresh.positive.shares
    assert negative is not None  # check_means
    assert positive is not None
    rate = 1.0 if terms.sends == "gradient" else -terms.rate(round)
    examples = PerExample.of(model, terms, fresh.negative.pool, rng=rng.child("fresh"))
    without, having = negative.double(), fresh.conduct.factor * positive.double()
    count = fresh.negative.rows.shape[1]
    detector = fisher(examples, without, having, count=count, rate=rate, shrinkage=shrinkage)
    if steps_of(terms, count) > 1:
        return _after_all_steps(detector, model, terms, heldout, round=round, rng=rng.child("held"))
    others = PerExample.of(model, terms, heldout.negative.pool, rng=rng.child("held"))
    scores = rate * others.along(detector.direction)
    low = scores[heldout.negative.rows].mean(1)
    high = heldout.conduct.factor * scores[heldout.positive.rows].mean(1)
    return detector, torch.stack([low, high]) + detector.offset


def _after_all_steps(
    detector: Detector, model: nn.Module, terms: Terms, heldout: Pairs, *, round: int, rng: Rng
) -> tuple[Detector, Tensor]:
    """The detector with the middle between both kinds of held-out clients as its zero, and their features."""
    honest = updates(model, terms, heldout.negative, rng=rng.child("negative"), round=round)
    if heldout.negative is heldout.positive:
        having = heldout.conduct.factor * honest
    else:
        stream = rng.child("positive")
        having = updates(model, terms, heldout.positive, rng=stream, conduct=heldout.conduct, round=round)
    scores = torch.stack([sent.double() @ detector.direction.double() for sent in (honest, having)])
    middle = float(scores.mean())
    return replace(detector, offset=-middle), scores - middle


def fisher(
    examples: PerExample, low: Tensor, high: Tensor, *, count: int, rate: float, shrinkage: float
) -> Detector:
    """Fisher's discriminant of means of ``count`` gradients, with the ridge.

    Args:
        examples: gradients of the pool.
        low: (E,) float64, expected weights of the entries in a client's mean without the property; also the
            weights of the covariance.
        high: as ``low``, with the property.
        rate: factor from a mean of gradients to an update.
        count: gradients in one mean.
        shrinkage: l, as a share of the trace of the covariance.
    """
    products = examples.gram()  # (E, E)
    inside = low > 0
    weight = low[inside].sqrt()
    difference = high - low
    mean = products @ low
    centred = products - mean[:, None] - mean[None] + low @ mean
    kernel = weight[:, None] * centred[inside][:, inside] * weight[None]
    ridge = shrinkage * float(kernel.trace())
    toward = products[inside] @ difference - low @ products @ difference
    kernel.diagonal().add_(ridge)
    solved = weight * torch.cholesky_solve((weight * toward)[:, None], torch.linalg.cholesky(kernel))[:, 0]
    combination = difference + low * solved.sum()
    combination[inside] -= solved
    combination *= count / (ridge * rate)
    direction = examples.weighted(combination)
    middle = examples.along(direction) @ (low + high) / 2
    spread = (examples.squared().weighted(low) - examples.weighted(low).square()).clamp_min(0)
    deviation = abs(rate) * (spread / count).sqrt() + TINY
    norm = float((direction * deviation).norm())
    return Detector(direction=direction, offset=-rate * float(middle), norm=norm)
