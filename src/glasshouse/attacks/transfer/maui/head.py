"""Craft the head: trained for sparse activations, calibrated by quantiles, or both; or from examples.

Source: Dabholkar et al. 2025 (Maui), Algorithm 2. Where we differ:
- the sparsity loss takes the *mean* of the activations, not their sum over the batch: with the sum training
  collapses, and with the mean the published weights give a share of active units near 1/512;
- the schedule's last epochs optimise classification only and undo the sparsity, so we keep the last epoch
  whose leakage on held-out features is nearly the highest: it classifies best of these. If calibration
  follows, which undoes most of the classification, we keep the epoch of highest leakage;
- the features are computed once, since they are frozen;
- ``quantile`` (ours): thresholds b with which each unit passes a chosen share of the public data. One share
  suits one batch size; a geometric ladder of shares suits all, each less well;
- ``exemplars`` (ours): calibrated directions of the adversary's own examples, without training.

Shape letters: n examples, D features, N units, K classes.
"""

import math
from dataclasses import asdict, dataclass
from typing import Literal, final

import torch
from torch import Tensor
from torch.nn import functional

from glasshouse.attacks.transfer.maui.exemplars import exemplars
from glasshouse.attacks.transfer.maui.leakage import Sample, Spab, accuracy, leakage
from glasshouse.cache import load_or_make
from glasshouse.errors import BadValue
from glasshouse.limits import Count, Natural, NotNegative, Positive, check_ranges
from glasshouse.progress import track
from glasshouse.rng import Rng
from glasshouse.tensors import FUSED, descend, take_prefix, with_prefix

Mode = Literal["trained", "quantile", "trained+quantile", "exemplars"]
_VERSION = 5
JUDGED = 512
"""Batch size at which epochs are compared, as in the paper's Table 3 (capped by the held-out examples)."""
_NEARLY = 0.95  # of the largest held-out leakage
_HELD = 0.3  # share of held-out auxiliary features, which select the epoch and measure the head


@final
@dataclass(frozen=True, kw_only=True)
class HeadSettings:
    """Settings of a crafted head; the defaults are the paper's for the CNN (Table 3).

    Attributes:
        mode: ``trained`` (Algorithm 2), ``quantile`` (calibrated), both, or ``exemplars`` (calibrated,
            without training, each unit for one of the adversary's examples).
        shares: of public examples that activate a unit (all modes but ``trained``): one share, or two ends of
            a geometric ladder over the units; empty: 1 over the number of examples behind an update.
        epochs: of ``batches`` batches of ``batch_size``.
        rate: learning rate of Adam.
        beta1: weight of the mean activation.
        beta2: weight of softplus(-Z).
        noise: standard deviation of the noise added to w and b before every epoch.
        wrong_labels: train on wrong labels, so that most clients' examples are misclassified and have large
            gradients.
        output_epochs: epochs that train only the last layer at the end, so that the head classifies better.
        update_norm: norm that updates get by scaling the last layer, against noise; 0: no scaling. Best
            where clients clip.
    """

    mode: Mode = "trained+quantile"
    shares: tuple[float, ...] = ()
    epochs: Count = 50
    batches: Count = 400
    batch_size: Count = 64
    rate: Positive = 0.0075
    beta1: Positive = 17868.661
    beta2: Positive = 63.2169
    noise: NotNegative = 0.0225
    wrong_labels: bool = False
    output_epochs: Natural = 0
    update_norm: NotNegative = 0.0

    def __post_init__(self) -> None:
        check_ranges(self, "attack 'maui': head")
        if len(self.shares) > 2 or not all(0 < p < 1 for p in self.shares):
            raise BadValue(
                "attack 'maui': head",
                needs="at most two shares in (0, 1)",
                got=f"shares = {list(self.shares)}",
                fix="correct it",
            )


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class CraftedHead:
    """A head, and the curves of its training.

    Attributes:
        head: the module.
        leakage: (epochs + 1,), on held-out features after each epoch of training; the last entry is for the
            head as sent.
        accuracy: as ``leakage``.
        best: the selected epoch, from 0; -1: not trained.
    """

    head: Spab
    leakage: Tensor
    accuracy: Tensor
    best: int


def craft_head(
    sample: Sample, *, units: int, classes: int, behind: int, settings: HeadSettings, rng: Rng
) -> CraftedHead:
    """Craft a head for these features; its training comes from the cache if possible.

    Args:
        sample: features of the adversary's images, with labels; 70 % train, the rest is held out.
        units: N.
        classes: K.
        behind: examples behind an update; the leakage of the head as sent is measured there.
        settings: of the head.
        rng: for weights, batches and noise.
    """
    order = torch.randperm(len(sample), generator=rng.child("split").torch())
    cut = round(_HELD * len(sample))
    heldout, own = sample.pick(order[:cut]), sample.pick(order[cut:])
    head = _fresh(sample.features.shape[1], units, classes, rng=rng)
    curves, best = torch.zeros((0, 2), dtype=torch.float64), -1
    if "trained" in settings.mode:
        later = ("mode", "shares", "output_epochs", "update_norm")  # changes to the trained head
        key = {
            "version": _VERSION,
            "features": sample.features,
            "labels": sample.labels,
            "settings": {k: v for k, v in asdict(settings).items() if k not in later},
            "units": units,
            "rng": rng.seed(),
        }
        tensors = load_or_make("maui-head", key, lambda _: _train_head(head, own, heldout, settings, rng))
        chosen = take_prefix(tensors, "most." if "quantile" in settings.mode else "late.")
        curves, best = tensors["curves"], int(chosen.pop("epoch"))
        head.load_state_dict(chosen)
    shares = settings.shares or (1 / max(behind, 2),)
    if settings.mode == "exemplars":
        _look_for_examples(head, own.features, shares)
    if settings.mode != "trained":
        calibrate(head, own.features, shares)
    if settings.output_epochs:
        _fit_output(head, own, settings=settings, rng=rng.child("output"))
    if settings.update_norm:
        amplify(head, own, length=settings.update_norm, batch=behind, rng=rng.child("loudness"))
    last = (leakage(head, heldout, batch=behind, rng=rng.child("leakage")), accuracy(head, heldout))
    curves = torch.cat([curves, torch.tensor([last], dtype=torch.float64)])
    return CraftedHead(
        head=head.requires_grad_(False), leakage=curves[:, 0], accuracy=curves[:, 1], best=best
    )


def _fresh(features: int, units: int, classes: int, *, rng: Rng) -> Spab:
    """Normal first-layer weights with variance 1/D, biases 0; the last layer with torch's initialisation."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.child("head").seed())
        head = Spab(features, units, classes)
        with torch.no_grad():
            head.hidden.weight.copy_(torch.randn(units, features) / features**0.5)
            head.hidden.bias.zero_()
    return head


def _look_for_examples(head: Spab, features: Tensor, shares: tuple[float, ...]) -> None:
    """Set directions of examples; dead features keep random weights, as zeros would be conspicuous."""
    share = math.sqrt(min(shares) * max(shares))
    directions = exemplars(features, units=len(head.hidden.bias), share=share)
    with torch.no_grad():
        head.hidden.weight.copy_(torch.where((directions == 0).all(0), head.hidden.weight, directions))


def calibrate(head: Spab, features: Tensor, shares: tuple[float, ...]) -> None:
    """Set the biases so that unit j passes its share of ``features``; see :class:`HeadSettings`."""
    count = len(head.hidden.bias)
    low, high = min(shares), max(shares)
    ladder = torch.logspace(math.log10(high), math.log10(low), count, dtype=torch.float64)
    with torch.no_grad():
        response = (features @ head.hidden.weight.T).double().sort(0).values
        # Interpolate between the sample's order statistics; beyond the last, take the largest value.
        place = ((1 - ladder) * len(features) - 0.5).clamp(0, len(features) - 1)
        below = place.floor().long().clamp_max(len(features) - 2)
        column = torch.arange(count)
        lower, upper = response[below, column], response[below + 1, column]
        head.hidden.bias.copy_(-(lower + (place - below) * (upper - lower)).float())


def amplify(head: Spab, sample: Sample, *, length: float, batch: int, rng: Rng) -> None:
    """Scale the last layer until the gradient of ``batch`` examples has a norm of about ``length``.

    Correctly classified examples become more certain; misclassified ones get larger gradients. If ``length``
    cannot be reached, the norm is the largest possible.
    """
    batches = sample.draw(batch, rng=rng)
    start = {n: t.clone() for n, t in head.out.state_dict().items()}
    low, high = -10.0, 20.0  # exponents of 2
    for _ in range(20):
        middle = (low + high) / 2
        head.out.load_state_dict({n: t * 2**middle for n, t in start.items()})
        mean_length = sum(_length(head, one) for one in batches) / len(batches)
        low, high = (middle, high) if mean_length < length else (low, middle)


def _length(head: Spab, one: Sample) -> float:
    """L2 norm of the gradient of all four tensors."""
    with torch.enable_grad():
        parameters = [p.requires_grad_() for p in head.parameters()]
        loss = functional.cross_entropy(head(one.features), one.labels)
        gradients = torch.autograd.grad(loss, parameters)
    return float(sum(float(g.square().sum()) for g in gradients) ** 0.5)


def _train_head(
    head: Spab, own: Sample, heldout: Sample, settings: HeadSettings, rng: Rng
) -> dict[str, Tensor]:
    """Run Algorithm 2 in place: curves (epochs, 2) of leakage and accuracy, and the weights of two epochs.

    ``most``: the epoch of highest leakage; ``late``: the last one with nearly as much.
    Takes at most half a minute, so it is restarted rather than resumed after an interruption.
    """
    optimizer = torch.optim.Adam(head.parameters(), lr=settings.rate, fused=own.features.device.type in FUSED)
    curves: list[tuple[float, float]] = []
    states: list[dict[str, Tensor]] = []
    labels = _wrong(own.labels, head.out.out_features, rng=rng) if settings.wrong_labels else own.labels
    for epoch in track(range(settings.epochs), "training the head"):
        # The weight moves from sparse activations to the task over the epochs (Algorithm 2).
        alpha = 1 - math.cos((epoch + 1) * math.pi / (2 * settings.epochs)) ** 2
        stream = rng.child(f"epoch/{epoch}")
        draws = stream.child("noise").torch()
        with torch.no_grad():
            for p in head.hidden.parameters():
                p.add_(torch.randn(p.shape, generator=draws), alpha=settings.noise)
        for rows in _batches(len(own), settings, generator=stream.child("order").torch()):
            # A unit that is active for few examples gives one of them away: activations are pushed below
            # zero.
            z = head.hidden(own.features[rows])
            active = torch.relu(z)
            loss = alpha * functional.cross_entropy(head.out(active), labels[rows])
            sparse = settings.beta1 * active.mean() + settings.beta2 * functional.softplus(-z).mean()
            loss = loss + (1 - alpha) * sparse
            descend(optimizer, loss)
        leak = leakage(head, heldout, batch=JUDGED, rng=rng.child("leakage"))
        curves.append((leak, accuracy(head, heldout)))
        states.append({n: t.clone() for n, t in head.state_dict().items()})
    # Leakage peaks early, accuracy late: both ends are kept, and the caller chooses.
    leaks = [leak for leak, _ in curves]
    most, late = leaks.index(max(leaks)), max(i for i, x in enumerate(leaks) if x >= _NEARLY * max(leaks))
    tensors = {"curves": torch.tensor(curves, dtype=torch.float64)}
    for word, epoch in (("most", most), ("late", late)):
        tensors |= with_prefix(f"{word}.", {"epoch": torch.tensor(epoch), **states[epoch]})
    return tensors


def _batches(count: int, settings: HeadSettings, *, generator: torch.Generator) -> list[Tensor]:
    """``batches`` batches from as many random passes over the data as they need."""
    examples = settings.batches * settings.batch_size
    rounds = [torch.randperm(count, generator=generator) for _ in range(-(-examples // count))]
    return list(torch.split(torch.cat(rounds)[:examples], settings.batch_size))


def _wrong(labels: Tensor, classes: int, *, rng: Rng) -> Tensor:
    shift = torch.randint(1, classes, labels.shape, generator=rng.child("wrong").torch())
    return (labels + shift) % classes


def _fit_output(head: Spab, own: Sample, *, settings: HeadSettings, rng: Rng) -> None:
    """Train only the last layer, on the units' activations."""
    labels = _wrong(own.labels, head.out.out_features, rng=rng) if settings.wrong_labels else own.labels
    with torch.no_grad():
        active = torch.relu(head.hidden(own.features))
    optimizer = torch.optim.Adam(head.out.parameters(), lr=0.01, fused=active.device.type in FUSED)
    for epoch in range(settings.output_epochs):
        order = torch.randperm(len(own), generator=rng.child(f"order/{epoch}").torch())
        for rows in torch.split(order, 256):
            loss = functional.cross_entropy(head.out(active[rows]), labels[rows])
            descend(optimizer, loss)
