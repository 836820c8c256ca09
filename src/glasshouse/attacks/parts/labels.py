"""Infer the labels behind an update from the gradient of the last linear layer.

Shape letters: B examples behind the update, K classes, D features that enter the last layer.

With cross-entropy, ``dL/db_c`` is the mean over the batch of p_c - y_c, and row c of ``dL/dW`` the mean of
(p_c - y_c) times the features, which are not negative after a ReLU or a sigmoid. In text models features may
be negative, so only the bias is used. One example: the only negative entry is the label. A batch: each
class's share n_c / B is subtracted from an otherwise small positive p_c.

After several local steps the mean gradient over the steps is used: an estimate, as the p_c change.

Under Adam and AdamW only signs remain (attacks.parts.local_steps): the biases of present classes rise, all
others fall. One example's label is as plain as in a gradient. Of a batch, only the set of classes is: the
examples are distributed over them in proportion to the rise of their biases, which after one step is evenly.
A class that occurs less often than the model expects is then missed.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal

import torch
from torch import Tensor

from glasshouse.attacks.parts.replica import Replica
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.models.text.base import TextModel
from glasshouse.rng import Rng
from glasshouse.tasks.base import LabelSignal
from glasshouse.tensors import scale_tensors, widen
from glasshouse.transcript.view import View

Rule = Literal["sums", "minima"]

PLAIN: Final = LabelSignal()
"""Cross-entropy without weights and smoothing."""

PROBES = 128
"""Random examples on which the received model's probabilities are estimated."""

LEARNT = 0.2
"""Mutual information, in nats, between probe and predicted class above which a model counts as trained.
Measured on CIFAR-10 train images: below 0.1 for five untrained models, 0.37 for a ConvNet of 58 % accuracy.
"""


def sums(replica: Replica) -> Tensor:
    """(K,) per class: mean probability minus share of the batch, in some unit (bias gradient or row sums).

    Of a head of one logit for two classes, the other logit is 0 and its entry the opposite.

    The bias gradient is preferred: row sums assume that no feature is negative, which does not hold in text
    models. Pruning to a tenth leaves one of ten bias entries; for a batch, entries that are zero are filled
    in from the row sums, rescaled to the unit of the bias gradient.

    Raises:
        Inapplicable: the update holds neither bias nor weight of the last layer, or they are zero.
    """
    entries = _entries(replica)
    return torch.cat([-entries, entries]) if len(entries) == 1 < replica.classes else entries


def _entries(replica: Replica) -> Tensor:
    """One per output of the last linear layer; see :func:`sums`."""
    name = replica.last_linear()
    gradient = scale_tensors(replica.moved(), -1.0) if replica.adaptive else replica.gradient()
    signed = isinstance(replica.model, TextModel)
    bias, weight = (gradient.get(f"{name}.{part}") for part in ("bias", "weight"))
    rows = None
    if not signed and weight is not None and bool(weight.any()):
        rows = widen(weight).flatten(1).sum(1)
    if bias is not None and bool(bias.any()):
        return widen(bias) if rows is None or replica.images == 1 else _fill(widen(bias), rows)
    if rows is not None:
        return rows
    raise _hidden(replica, name)


def _fill(bias: Tensor, rows: Tensor) -> Tensor:
    """(K,) the bias gradient; where it is 0, the row sums, rescaled by the classes that have both."""
    both = bias * rows > 0
    if not bool(both.any()):
        return bias
    unit = bias[both].abs().sum() / rows[both].abs().sum()
    return torch.where(bias == 0, unit * rows, bias)


def minima(weight: Tensor) -> Tensor:
    """(K,) smallest entry of each class's row of the last weight gradient (K, D); lowest for present classes.

    Source: Yin et al. 2021 (GradInversion), arXiv:2104.07586, equation 6.
    """
    return widen(weight).min(1).values


def counts(sums: Tensor, expected: Tensor, examples: int, signal: LabelSignal = PLAIN) -> Tensor:
    """How many examples of each class, (K,) int64, summing to ``examples``.

    Args:
        sums: (K,), see :func:`sums`; for B <= K and plain cross-entropy in any positive unit (a clipped
            gradient works, too).
        expected: (K,) mean probabilities of the model before the update.
        examples: B.
        signal: how the loss shows labels.

    n_c is about B (expected_c - sums_c), rounded so that the counts add up to B. The unit: for B <= K,
    present classes have negative sums, whose total without scaling is their share of ``expected`` minus 1.
    In a larger batch the sum of a present class may be positive, and the gradient is not rescaled. With class
    weights, ``expected_c - sums_c`` is about ``n_c w_c / Σ n w``, which is solved in whole numbers.

    Source: the idea is Zhao et al. 2020 (iDLG), arXiv:2001.02610, section 3, for B = 1, and Wainakh et
    al. 2022 (LLG), arXiv:2105.09369, for batches; the unit, the rounding and the weights are ours.

    Examples:
        >>> even = torch.full((4,), 0.25)
        >>> counts(torch.tensor([0.25, -0.25, 0.25, -0.25]), even, 2)
        tensor([0, 1, 0, 1])
        >>> counts(torch.tensor([0.25, -0.75, 0.25, 0.25]), even, 2)
        tensor([0, 2, 0, 0])
    """
    negative, unit = sums < 0, signal.unit
    if examples <= len(sums) and bool(negative.any()) and signal == PLAIN:
        unit = float(sums[negative].sum() / (expected[negative].sum() - 1))
    spread = signal.smoothing / len(sums)
    shares = (widen(expected) - sums / max(unit, 1e-12) - spread) / (1 - signal.smoothing)
    if signal.weights:
        return _weighted_counts(shares, shares.new_tensor(signal.weights), examples)
    expected_counts = examples * shares
    class_counts = torch.zeros(len(sums), dtype=torch.int64, device=sums.device)
    for _ in range(examples):
        class_counts[int((expected_counts - class_counts).argmax())] += 1
    return class_counts


def _weighted_counts(shares: Tensor, weights: Tensor, examples: int) -> Tensor:
    """Counts n whose weighted shares ``n w / Σ n w`` are nearest to ``shares``, by exchanging examples.

    Classes of weight 0 leave no trace: none is ever counted.
    """
    if bool((weights == 0).any()):
        seen = weights > 0
        counted = torch.zeros(len(weights), dtype=torch.int64, device=shares.device)
        counted[seen] = _weighted_counts(shares[seen], weights[seen], examples)
        return counted

    def errors(candidates: Tensor) -> Tensor:
        weighted = candidates * weights
        return (weighted / weighted.sum(1, keepdim=True).clamp_min(1e-12) - shares).square().sum(1)

    return _exchanged(errors, shares, examples)


def _exchanged(errors: Callable[[Tensor], Tensor], like: Tensor, examples: int) -> Tensor:
    """Counts that add up to ``examples`` with a small error, by adding and exchanging examples.

    Args:
        errors: of candidates (R, K), (R,).
        like: a tensor of K rows, for the type and the place.
        examples: B.
    """
    every = torch.eye(len(like), dtype=like.dtype, device=like.device)
    # One example after the other, each in the class that fits best; then single exchanges while they help.
    now = torch.zeros(len(like), dtype=like.dtype, device=like.device)
    for _ in range(examples):
        now = now + every[int(errors(now + every).argmin())]
    lowest = float(errors(now[None]))
    for _ in range(examples * len(like)):
        present = torch.where(now > 0)[0]
        moved = (now - every[present])[:, None] + every[None]
        each = errors(moved.flatten(0, 1))
        if float(each.min()) >= lowest - 1e-12:
            break
        lowest, now = float(each.min()), moved.flatten(0, 1)[int(each.argmin())]
    return now.round().long()


def expected_probabilities(replica: Replica, *, rng: Rng) -> Tensor:
    """(K,) mean probabilities of the received model on a client's images, estimated without such images.

    An untrained model predicts nearly the same for every image: the mean over smooth random images (for a
    text model, random tokens) is returned. A trained model's predictions on random images say nothing about
    real ones; classes are then assumed equally likely, as training makes them on balanced data.
    """
    with torch.no_grad():
        logits = _probed(replica, rng=rng)
    each = replica.terms.architecture.task.chances(widen(logits))
    shares = each.clamp_min(0)  # outputs of a squared loss may be negative
    shares = shares / shares.sum(1, keepdim=True).clamp_min(1e-12)
    information = _entropy(shares.mean(0)) - _entropy(shares).mean()
    if float(information) > LEARNT:
        return torch.full_like(each[0], 1 / replica.classes)
    return each.mean(0)


def _probed(replica: Replica, *, rng: Rng) -> Tensor:
    """(PROBES, K) outputs for random examples, in the mode in which the client trained."""
    probes = replica.terms.architecture.inputs.probes(PROBES, rng.torch())
    outputs: Tensor = replica.trained(probes.to(replica.device))
    return outputs


def slopes_of(replica: Replica, *, rng: Rng) -> Tensor:
    """(K, K): row y is the mean gradient of the outputs for an example of class y, by differentiation.

    For losses of which nothing is known: they are called with every label, on random examples.
    """
    task = replica.terms.architecture.task
    with torch.no_grad():
        outputs = _probed(replica, rng=rng)
    rows = []
    for label in range(replica.classes):
        points = outputs.detach().clone().requires_grad_()
        labels = torch.full((len(points),), label, dtype=torch.int64, device=points.device)
        losses = task.losses(points, labels, points)
        (slope,) = torch.autograd.grad(losses.sum(), points)
        rows.append(widen(slope).mean(0))
    return torch.stack(rows)


def counts_by_slopes(sums: Tensor, slopes: Tensor, examples: int) -> Tensor:
    """Counts n whose mean of ``slopes`` (K, K), ``Σ n_y slopes_y / B``, is nearest to ``sums``."""
    wanted = widen(sums)

    def errors(candidates: Tensor) -> Tensor:
        return (candidates @ slopes / examples - wanted).square().sum(1)

    return _exchanged(errors, slopes, examples)


def _entropy(probabilities: Tensor) -> Tensor:
    return -(probabilities * probabilities.clamp_min(1e-12).log()).sum(-1)


def infer_labels(replica: Replica, *, rng: Rng, rule: Rule = "sums") -> Tensor:
    """(B,) int64 labels in ascending order.

    ``sums`` allows a class to occur several times; ``minima`` (GradInversion's) does not, and needs B <= K.

    Raises:
        Inapplicable: the last layer is not in the update, or the rule cannot hold.
    """
    if rule == "minima":
        name = replica.last_linear()
        weight = replica.gradient().get(f"{name}.weight")
        if weight is None or not bool(weight.any()):
            raise _hidden(replica, name)
        if isinstance(replica.model, TextModel):
            needs = "features that are not negative, as behind a ReLU"
            got = f"'{replica.terms.architecture.name}', a model of sentences"
        elif replica.images > replica.classes:
            needs, got = f"at most {replica.classes} examples (no class twice)", f"{replica.images}"
        else:
            both = torch.cat([-weight, weight]) if len(weight) == 1 < replica.classes else weight
            return minima(both).argsort()[: replica.images].sort().values
        raise Inapplicable(
            "label inference by column-wise minima", needs=needs, got=got, fix="use rule 'sums'"
        )
    task, summed = replica.terms.architecture.task, replica.terms.training.reduction == "sum"
    signal = task.signal
    if replica.images == 1 and signal is not None:  # whatever the weights, only the label's entry is negative
        return sums(replica).argmin()[None]
    if summed and signal is not None and signal.weights:
        raise Inapplicable(
            f"label inference for client {replica.update.client} in round {replica.update.round}",
            needs="a mean of weighted losses, or a sum of losses that have no weights",
            got="a sum of weighted losses, whose unit depends on the labels",
            fix="grant the labels (threat.grants)",
        )
    class_sums = sums(replica)
    if replica.adaptive:  # only signs remain, under any loss
        rises = class_sums.clamp_max(0)
        class_counts = counts(rises / rises.sum().abs(), torch.zeros_like(rises), replica.images)
    else:
        expected = expected_probabilities(replica, rng=rng)
        if signal is None:
            class_counts = counts_by_slopes(class_sums, slopes_of(replica, rng=rng), replica.images)
        else:
            class_counts = counts(class_sums, expected, replica.images, signal)
    return torch.arange(replica.classes, device=class_counts.device).repeat_interleave(class_counts)


def known_labels(view: View, replica: Replica, *, rng: Rng, rule: Rule = "sums") -> Tensor:
    """(B,) the granted labels of this update, else the inferred ones; blank ones where no loss reads them.

    Raises:
        BadValue: the grant does not name one label per example.
        Inapplicable: as :func:`infer_labels`.
    """
    granted = view.grants.labels.get((replica.update.round, replica.update.client))
    task = replica.terms.architecture.task
    if granted is None and task.unknown == "unused":
        return task.blank(replica.images, task.outputs).to(replica.device)
    if granted is None:
        return infer_labels(replica, rng=rng, rule=rule)
    if granted.shape[:1] != (replica.images,):
        raise BadValue(
            "granted labels",
            needs=f"{replica.images} for client {replica.update.client}, round {replica.update.round}",
            got=str(tuple(granted.shape)),
            fix="grant one label per example behind the update",
        )
    return granted


def labels_of_each(
    views: Sequence[View], clients: Sequence[Replica], *, rngs: Sequence[Rng], rule: Rule = "sums"
) -> list[Tensor]:
    """:func:`known_labels` for every view; ``rngs``: the attack's streams, one per view."""
    every = zip(views, clients, rngs, strict=True)
    return [known_labels(view, one, rng=rng.child("labels"), rule=rule) for view, one, rng in every]


def _hidden(replica: Replica, name: str) -> Inapplicable:
    return Inapplicable(
        f"label inference for client {replica.update.client} in round {replica.update.round}",
        needs=f"a gradient of '{name}' that is not zero",
        got=", ".join(sorted(replica.update.tensors)),
        fix="grant the labels (threat.grants), or train the last layer in the protocol",
    )
