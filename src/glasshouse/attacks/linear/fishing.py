"""Fishing: a last layer for which only one example of the whole cohort has a nonzero gradient.

Source: Wen et al. 2022, "Fishing for User Data in Large-Batch Federated Learning via Gradient Magnification",
ICML, arXiv:2202.00580. Only the weights of the last layer change. Row c of its gradient is the mean over
examples of (p_c - [y = c]) f, f the features, and the gradient of all earlier layers passes through row c
alone.

* ``class``: the biases of all other classes are so high that p_c = 0. Examples of other classes contribute
  nothing through row c; the gradient is a single example's if the cohort holds one of class c.
* ``feature``: logit c is a step at a threshold of one feature, so p_c is 1 above it and 0 below. An example
  of another class contributes only above. In a cohort without class c, a single example remains if the
  threshold lies between the largest and the second largest value of the feature.
* ``rounds``: in the difference of two rounds with two thresholds on the same data, everything cancels but the
  examples between the two, of class c or not. Their number is the difference of the bias gradients; a bin of
  several is split in the next round.

The remaining example is recovered from the first linear layer, in closed form.

Where we differ: ours are ``rounds``, the blind test for a single example (its count, and pixels in the image
range), and the closed form in place of an inversion.

Breaks when: the cohort holds several examples of the class, or none (class), or any (feature); clients draw
other examples every round, or drop out (rounds); parameters are sent instead of gradients, as the steep row
loses them in rounding. Shape letters: N auxiliary images, E features, B examples, R rows, D pixels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter
from typing import ClassVar, Literal, final

import torch
from torch import Tensor, nn

from glasshouse.attacks.base import About, Claim, Needs, Reconstruction
from glasshouse.attacks.inversion.linear_input import find_first_linear
from glasshouse.attacks.parts.readout.linear_tail import latents
from glasshouse.attacks.parts.readout.summed import RoundSum, crafting_control, crafting_needs, sum_of_round
from glasshouse.errors import Inapplicable
from glasshouse.limits import Natural, check_ranges
from glasshouse.models.build import build, load
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Crafted, Terms

SUBJECT = "attack 'fishing'"
WHOLE, OUTSIDE = 0.02, 1e-2
"""Tolerance on a count of 1 example, and on pixels outside the image range, as a share of the range."""
_HIGH = 40.0  # bias of all other classes: float32 cannot represent p below exp(-87)
_STEEP = 1e5  # slope of the step, in standard deviations of the feature
PARTS, SIDES = ("weight", "bias"), ("below", "above")


@final
@dataclass(frozen=True, kw_only=True)
class Fishing:
    """The attack and its settings.

    Args:
        strategy: ``feature``, ``rounds`` or ``class``.
        target: the class c.
    """

    card: ClassVar[Card] = Card(
        title="Fishing",
        summary="a last layer at which a single example of the whole cohort has a gradient",
        source="Wen et al. 2022, arXiv:2202.00580",
        claims=("reconstruction",),
        threat="malicious server: sets the last layer, keeps the architecture, sees only the sum",
        grants=("auxiliary",),
        details={"attribution": "none: it cannot say whose image it is", "structure": "unchanged"},
        control=crafting_control("parameters", batch=1, rounds=120, model={"name": "mlp"}),
        offers=(Offer(strength=0.5, seconds=1),),
    )
    needs: ClassVar[Needs] = crafting_needs("parameters")
    budget: ClassVar[None] = None

    strategy: Literal["feature", "rounds", "class"] = "feature"
    target: Natural = 0

    def __post_init__(self) -> None:
        check_ranges(self, SUBJECT)

    def check_model(self, architecture: Architecture) -> None:
        """Refuse models that do not begin and end with a linear layer, or lack the class."""
        _layers(architecture)
        if self.target >= architecture.classes:
            raise Inapplicable(
                SUBJECT,
                needs=f"target below {architecture.classes}, the number of classes",
                got=f"target = {self.target}",
                fix="set attacks.target to a class of the data",
            )

    def craft(self, view: View, *, rng: Rng) -> Crafted | None:
        """The honest model with a last layer that passes only one class, or one side of a threshold."""
        del rng  # deterministic
        one, auxiliary = view.rounds[-1], view.grants.auxiliary
        assert auxiliary is not None  # needs.grants
        _, last = _layers(view.terms.architecture)
        tensors = {name: t.cpu() for name, t in one.broadcast.tensors.items()}
        weight, bias = (torch.zeros_like(tensors[f"{last}.{part}"]) for part in PARTS)
        memory: dict[str, Tensor] = {}
        if self.strategy == "class":
            weight[self.target] = tensors[f"{last}.weight"][self.target]
            bias += _HIGH
            bias[self.target] = 0.0
            memory[f"alone.{one.round}"] = torch.ones(1)
        else:
            features = _features(view.terms.architecture, tensors, auxiliary.inputs.cpu(), last)
            place = _spread_most(features)
            values = features[:, place].double()
            cohort = view.terms.cohort * view.terms.batch_size
            past = [r for r in view.rounds[:-1] if _comparable(r, one, view.memory, last)]
            known = [(float(view.memory[f"threshold.{r.round}"]), _sum(r, view.terms)) for r in past]
            counts = [(at, _count(total, self.target)) for at, total in known]
            top = float(values.quantile(1 - 1 / max(cohort, 2)))
            threshold = next_threshold(values, counts, cohort) if self.strategy == "rounds" else top
            slope = _STEEP / float(values.std())
            weight[self.target, place] = slope
            bias[self.target] = -slope * threshold
            memory[f"threshold.{one.round}"] = torch.tensor(threshold, dtype=torch.float64)
            if self.strategy == "rounds":
                memory |= _neighbours(threshold, known, target=self.target, number=one.round)
        tensors |= {f"{last}.weight": weight, f"{last}.bias": bias}
        return Crafted(default=replace(one.broadcast, tensors=tensors), memory=memory)

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """The examples that each round isolated, at most two; the confidence of all is 1."""
        del rng  # deterministic
        shape, (low, high) = view.terms.architecture.input_shape, view.terms.architecture.inputs.range
        claims: list[Claim] = []
        for one in view.rounds:
            if not {f"alone.{one.round}", f"threshold.{one.round}"} & view.memory.keys():
                continue
            total = _sum(one, view.terms)
            alone = self._differences(total, view.memory, one.round)
            squares = [float(bias.dot(bias)) for _, bias in alone]  # 0: no unit was active
            read = [(b @ w / s).float() for (w, b), s in zip(alone, squares, strict=True) if s > 0]
            inputs = torch.cat([torch.zeros(0, *shape), *(x.reshape(1, *shape) for x in read)])
            pixels = _to_pixels(view.terms.architecture, inputs)
            margin = OUTSIDE * (high - low)
            inside = ((pixels >= low - margin) & (pixels <= high + margin)).flatten(1).all(1)
            pixels = pixels[inside].clamp(low, high)
            about, sure = About(rounds=(one.round,)), torch.ones(len(pixels))
            claims.append(Reconstruction(about=about, inputs=pixels, labels=None, confidence=sure))
        return tuple(claims)

    def _differences(self, total: RoundSum, memory: Mapping[str, Tensor], number: int) -> list[list[Tensor]]:
        """Gradients of the first layer, weight and bias, that come from a single example."""
        count = _count(total, self.target)
        if self.strategy != "rounds":
            expected = -1 if self.strategy == "class" else 1
            return [list(total.gradient.values())[:2]] if abs(count - expected) < WHOLE else []
        alone = []
        for side in SIDES:
            if f"{side}.{number}.count" not in memory:
                continue
            between = abs(float(memory[f"{side}.{number}.count"]) - count)
            if abs(between - 1) < WHOLE:
                parts = zip(total.gradient.values(), PARTS, strict=False)
                alone.append([t - memory[f"{side}.{number}.{part}"].cpu() for t, part in parts])
        return alone


def _comparable(earlier: RoundView, one: RoundView, memory: Mapping[str, Tensor], last: str) -> bool:
    """Whether an earlier round was attacked with the same model, apart from the last layer."""
    then, now = earlier.broadcast.tensors, one.broadcast.tensors
    same = (torch.equal(then[n], t) for n, t in now.items() if not n.startswith(f"{last}."))
    return f"threshold.{earlier.round}" in memory and all(same)


def _sum(one: RoundView, terms: Terms) -> RoundSum:
    """Gradients of the first layer's weight and bias, then of the last layer's bias."""
    first, last = _layers(terms.architecture)
    names = (f"{first}.weight", f"{first}.bias", f"{last}.bias")
    total = sum_of_round(one, terms=terms, names=names, subject=SUBJECT)
    return replace(total, gradient={name: t.cpu() for name, t in total.gradient.items()})


def _count(total: RoundSum, target: int) -> float:
    """Examples above the threshold minus those of the class; under ``class`` minus the latter alone."""
    return float(list(total.gradient.values())[2][target]) / total.unit


def next_threshold(values: Tensor, known: list[tuple[float, float]], examples: int) -> float:
    """The threshold on the feature in the coming round.

    Args:
        values: (N,) of auxiliary images.
        known: thresholds of earlier rounds, and the number of examples above each, up to a common constant.
        examples: in the cohort.

    Returns:
        First a value above all examples. Then bins from the top that hold one example on average; a bin that
        held several is split at the median of the auxiliary images in it, the fullest first.

    Examples:
        >>> values = torch.arange(100.0)
        >>> next_threshold(values, [(200.0, 0.0), (80.0, 2.0)], 10)
        90.0
    """
    low, high = float(values.min()), float(values.max())
    beyond = high + 10 * (high - low) + 1.0
    if not known:
        return beyond
    cuts = sorted(known, reverse=True)
    bins = [(b - a, y, x) for (x, a), (y, b) in pairwise(cuts)]  # count, lower, upper
    if full := [one for one in bins if one[0] > 1.5 and one[2] - one[1] > 1e-9 * beyond]:
        _, lower, upper = max(full)
        inside = values[(values > lower) & (values < upper)]
        return float(inside.median()) if len(inside) > 1 else (lower + min(upper, high)) / 2
    below = float((values < cuts[-1][0]).double().mean())
    return float(values.quantile(max(below - 1 / examples, 0.0)))


def _neighbours(
    threshold: float, known: list[tuple[float, RoundSum]], *, target: int, number: int
) -> dict[str, Tensor]:
    """The sums of the rounds with the next lower and next higher threshold, for the attack's memory."""
    nearest = {
        "below": max((k for k in known if k[0] < threshold), default=None, key=itemgetter(0)),
        "above": min((k for k in known if k[0] > threshold), default=None, key=itemgetter(0)),
    }
    memory: dict[str, Tensor] = {}
    for side, nearby in nearest.items():
        if nearby:
            parts = dict(zip(PARTS, nearby[1].gradient.values(), strict=False))
            count = torch.tensor(_count(nearby[1], target), dtype=torch.float64)
            memory |= {f"{side}.{number}.{name}": t for name, t in {**parts, "count": count}.items()}
    return memory


def _layers(architecture: Architecture) -> tuple[str, str]:
    """Names of the first and of the last linear layer.

    Raises:
        Inapplicable: the first layer is not linear with a bias, or the last has none.
    """
    model = build(architecture)
    names = dict(model.named_parameters()).keys()
    first = find_first_linear(model, architecture.input_shape, subject=SUBJECT)
    linear = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    last = [n for n, m in linear.items() if m.out_features == architecture.classes]
    if not last or last[-1] == first or f"{last[-1]}.bias" not in names:
        raise Inapplicable(
            SUBJECT,
            needs="a last layer that is linear, has a bias and is not the first",
            got=", ".join(sorted(names)),
            fix="audit a model with a hidden layer (mlp)",
        )
    return first, str(last[-1])


def _features(architecture: Architecture, tensors: Mapping[str, Tensor], images: Tensor, last: str) -> Tensor:
    """Inputs of the last layer, (N, E)."""
    model = build(architecture)
    load(model, tensors)
    with torch.no_grad():
        return latents(model.eval(), last)(images)


def _spread_most(features: Tensor) -> int:
    """The index of the feature (of (N, E)) with the largest deviation, among those most often nonzero."""
    alive = (features > 0).double().mean(0)
    return int(torch.where(alive >= alive.max() - 0.01, features.double().std(0), -1.0).argmax())


def _to_pixels(architecture: Architecture, inputs: Tensor) -> Tensor:
    """Convert inputs of the first layer (B, C, H, W) to pixels."""
    layer = dict(build(architecture).named_children()).get("normalize", nn.Identity())
    with torch.no_grad():
        zero = layer(torch.zeros(1, *inputs.shape[1:]))
        slope = layer(torch.ones(1, *inputs.shape[1:])) - zero
        pixels: Tensor = (inputs - zero) / slope
    return pixels
