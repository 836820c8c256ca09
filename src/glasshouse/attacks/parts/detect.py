"""Infer which defence was applied to an update, from the gradient of the last linear layer.

Rounding to half precision shows in the entries themselves, and every tolerance follows it.

Shape letters: B examples behind the update, K classes, F features that enter the last layer.

With cross-entropy the columns of that layer's weight gradient sum to zero over the classes (the probabilities
of an example and its one-hot label both sum to 1). The tests, in this order:

- columns that do not sum to zero: entries on a coarse grid mean quantisation (or signs); isolated zeros, in
  rows and columns that are not entirely zero, mean magnitude pruning; anything else is noise, of standard
  deviation (root mean square of the sums) / √K;
- several tensors of the same norm, and none of a larger one: clipping per tensor;
- one example: more columns are zero than in probes (the adversary's own images, or random ones): Soteria. As
  published it changes the gradient alone, and the next test fails; where its loss was computed on what is
  left of the representation, the next test passes;
- one example: the weight gradient is d rᵀ with the bias gradient d = p - y. Dividing by d gives the features
  r, from which follow p = softmax(W r + b) and the expected d. If the received d is a smaller multiple of
  the expected one, it was clipped; if it has another direction, features that contribute to p were hidden:
  Soteria;
- several examples, or several local steps: Soteria if more columns are zero than in batches of the
  adversary's own images, or of random ones; clipping is not tested, as the length of d is not known.

Dead ReLU features have the same mask as Soteria: a perturbed loss that hides no more than a few others is not
told from them. ``unknown``: the last
layer is not in the update, or the tests contradict each other. Clipping that did not bind and Soteria that
hid dead features changed nothing, and are not detected. Noise on top of Soteria or pruning hides them.
Under Adam and AdamW every finding is ``unknown``.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from glasshouse.attacks.base import DefenseGuess
from glasshouse.attacks.parts.labels import sums
from glasshouse.attacks.parts.matching import transforms
from glasshouse.attacks.parts.matching.distance import Steps, local_steps, target_of
from glasshouse.attacks.parts.matching.transforms import Adaptation
from glasshouse.attacks.parts.readout.linear_tail import latents
from glasshouse.attacks.parts.replica import Replica
from glasshouse.attacks.parts.restore import restore_columns
from glasshouse.privacy.marks import ROUNDING, grid_bits, noise_of, rounding_of, scattered_zeros
from glasshouse.rng import Rng
from glasshouse.tasks.base import LabelSignal
from glasshouse.tensors import norm, widen
from glasshouse.wire import Value

NONE, UNKNOWN = "none", "unknown"
SHORT = 0.999
"""A last-layer gradient shorter than this share of its predicted length counts as clipped."""
PROBES = 64
PERTURBED = "perturbed"
"""Soteria whose loss was computed on what it leaves of the representation, as in GGL's text."""


def detect(replica: Replica, *, images: Tensor | None = None, rng: Rng) -> DefenseGuess:
    """Guess which defence was applied to the update in ``replica``: names are joined by ``" + "``.

    Args:
        replica: the model as received, and the update.
        images: the adversary's, (N, C, H, W) in pixel units; None: random pixels are used instead.
        rng: for the random pixels.
    """
    if replica.adaptive:  # Adam's steps are nearly signs: none of the tests below applies
        return _guess(replica, UNKNOWN)
    gradient, last = replica.gradient(), replica.last_linear()
    weight, bias = gradient.get(f"{last}.weight"), gradient.get(f"{last}.bias")
    if weight is None or not bool(weight.any()):
        return _guess(replica, UNKNOWN)
    rounding = rounding_of(replica.update.tensors)
    noise = noise_of(weight, rounding=rounding)
    if noise and (bits := grid_bits(gradient)) is not None:
        return _guess(replica, "sign") if bits == 1 else _guess(replica, "quantise", bits=bits)
    if noise and scattered_zeros(weight):
        zeros = sum(int((t == 0).sum()) for t in gradient.values())
        share = zeros / sum(t.numel() for t in gradient.values())
        return _guess(replica, "prune", share=share)
    bound = transforms.estimate(gradient, last=last).layer_clip
    if bound is not None:
        return _guess(replica, "clip_layers", norm=bound)
    # How one example's bias gradient should look is known of plain cross-entropy alone.
    plain = replica.terms.architecture.task.signal == LabelSignal()
    alone = plain and replica.images == 1 and replica.update.steps == 1
    if alone and bias is not None and bool(bias.any()):
        usual = _usual_zeros(replica, last, images=images, rng=rng)
        tolerance = max(ROUNDING, rounding)
        return _single(replica, widen(weight), widen(bias), noise=noise, usual=usual, tolerance=tolerance)
    if noise:
        return _guess(replica, "gaussian_noise", std=noise)
    hidden = _zero_columns(weight)
    if hidden > _usual_zeros(replica, last, images=images, rng=rng):
        return _guess(replica, "soteria", share=hidden)
    return _guess(replica, NONE)


def _single(
    replica: Replica, weight: Tensor, bias: Tensor, *, noise: float, usual: float, tolerance: float
) -> DefenseGuess:
    """One example: compare the bias gradient d with its prediction from the features.

    Args:
        replica: of the update.
        weight: gradient (K, F) of the last layer.
        bias: gradient (K,) of its bias.
        noise: standard deviation in ``weight``.
        usual: share of zero columns that probes reach.
        tolerance: relative deviation of d that rounding explains. In half precision d of an undefended update
            misses by 0.1 to 0.4 times the rounding, of a masked one by 1.5 times at least.
    """
    expected = _expected_bias(replica, weight, bias)
    shortest = 1 - max(1 - SHORT, tolerance)
    length = float(bias @ expected / expected.square().sum().clamp_min(1e-30))
    miss = float((bias - length * expected).norm() / bias.norm())
    if noise:
        # Two standard deviations of the estimated length: of 100 tuning photographs under noise of 0.1, one
        # counts as clipped; with a clip of 4 as well, 73 do (with three deviations: none, and 61).
        slack = 2 * noise / float(expected.norm().clamp_min(1e-12))
        clip = "clip + " if length < min(shortest, 1 - slack) else ""
        return _guess(replica, f"{clip}gaussian_noise", std=noise)
    hidden = _zero_columns(weight)
    if miss > tolerance:
        return _guess(replica, "soteria", share=hidden) if hidden > 0 else _guess(replica, UNKNOWN)
    if hidden > usual:
        return _guess(replica, "soteria", share=hidden, loss=PERTURBED)
    if length < shortest:
        return _guess(replica, "clip", norm=norm(replica.gradient()))
    return _guess(replica, NONE if length < 2 - shortest else UNKNOWN)


def _expected_bias(replica: Replica, weight: Tensor, bias: Tensor) -> Tensor:
    """(K,) p - y of the one example before clipping or scaling, from the features r = dᵀ(d rᵀ) / |d|²."""
    layer = replica.model.get_submodule(replica.last_linear())
    assert isinstance(layer, nn.Linear)
    features = bias @ weight / bias.square().sum()  # (F,)
    logits = widen(layer.weight) @ features
    if layer.bias is not None:
        logits = logits + widen(layer.bias)
    expected = logits.softmax(0)
    expected[int(sums(replica).argmin())] -= 1
    return expected


def _zero_columns(weight: Tensor) -> float:
    return float((weight == 0).all(0).float().mean())


def _usual_zeros(replica: Replica, last: str, *, images: Tensor | None, rng: Rng) -> float:
    """Share of features that no group of B probes exceeds as all zero, with a margin for other examples.

    The probes are the adversary's images, or random pixels and flat pictures. The margin is the spread
    between the mean and the largest share, and one feature.
    """
    if images is None or len(images) < PROBES:
        low, high = replica.terms.architecture.inputs.range
        noise, level = (rng.child(name).torch() for name in ("probes", "levels"))
        random = torch.rand((PROBES, *replica.shape), generator=noise)
        flat = torch.rand((PROBES, replica.shape[0], *(1 for _ in replica.shape[1:])), generator=level)
        images = torch.cat([random, flat.expand_as(random)]).to(replica.device) * (high - low) + low
    with torch.no_grad():
        dead = latents(replica.model, last)(images[: 4 * PROBES]) == 0
    whole = len(dead) // replica.images * replica.images
    groups = dead[:whole].reshape(-1, replica.images, dead.shape[1]).all(1).float().mean(1)
    if not len(groups):
        return 1.0
    most = float(groups.max())
    return most + (most - float(groups.mean())) + 1.0 / dead.shape[1]


def _guess(replica: Replica, name: str, **parameters: Value) -> DefenseGuess:
    return DefenseGuess(about=replica.about, name=name, parameters=parameters)


def adaptation(
    finding: DefenseGuess, replica: Replica, *, steps: Steps = "simulate", restore: bool = True
) -> Adaptation:
    """The transformation of candidates for a detected defence; none if there is certainly no defence.

    Noise needs no transformation: its expectation does not move the minimum. Under noise the clip bound
    cannot be read off the update's norm, so each candidate is shortened by the best-fitting factor.

    Args:
        finding: of :func:`detect`.
        replica: the update.
        steps: how several local steps are matched; clip bound and mask are estimated on the matching target.
        restore: solve for the columns that Soteria hid where one example's update determines them, instead of
            leaving them out.
    """
    if replica.adaptive:
        return Adaptation()
    received = target_of(replica, local_steps(replica, steps))
    if finding.name == "clip + gaussian_noise":
        return Adaptation(shortened=True)
    if finding.name == "prune":
        return Adaptation(masks={name: t != 0 for name, t in received.items()})
    if finding.name == "soteria":
        columns = f"{replica.last_linear()}.weight"
        single = replica.images == 1 and replica.update.steps == 1
        published = "loss" not in finding.parameters
        if restore and single and published and (whole := restore_columns(replica)) is not None:
            return Adaptation(restored={columns: whole})
        return Adaptation(masks={columns: (received[columns] != 0).any(0, keepdim=True)})
    if finding.name == "clip_layers":
        return Adaptation(layer_clip=transforms.estimate(received, last=replica.last_linear()).layer_clip)
    unseen = replica.images > 1 or replica.update.steps > 1  # clipping was not tested for: assume it
    return Adaptation(clip=norm(received)) if finding.name == "clip" or unseen else Adaptation()


def as_defended(client: Replica, finding: DefenseGuess) -> Replica:
    """The replica whose gradient on the private examples is what a client under ``finding`` computed.

    Another one only for Soteria by a perturbed loss: a feature that is left out of the representation has no
    weight in the layer that reads it.
    """
    if finding.name != "soteria" or "loss" not in finding.parameters:
        return client
    last = client.last_linear()
    kept = (client.gradient()[f"{last}.weight"] != 0).any(0)
    model = copy.deepcopy(client.model)
    layer = model.get_submodule(last)
    assert isinstance(layer, nn.Linear)
    layer.weight.data *= kept
    parameters = dict(model.named_parameters())
    received = {name: parameters[name].detach() for name in client.received}
    return replace(client, model=model, received=received)


def detect_adaptation(replica: Replica, *, adaptive: bool, rng: Rng) -> Adaptation | bool:
    """The transformation of candidates, as an argument of ``matching.objective``, from the detected defence.

    For several examples or local steps, where clipping cannot be detected, ``adaptive`` itself; True there
    means the estimate without a detector.
    """
    if not adaptive or replica.images > 1 or replica.update.steps > 1:
        return adaptive
    return adaptation(detect(replica, rng=rng), replica)


def adaptation_of_each(
    clients: Sequence[Replica], *, adaptive: bool, rngs: Sequence[Rng]
) -> list[Adaptation | bool]:
    """:func:`detect_adaptation` for every client; ``rngs``: the attack's streams, one per client."""
    every = zip(clients, rngs, strict=True)
    return [detect_adaptation(one, adaptive=adaptive, rng=rng.child("detect")) for one, rng in every]
