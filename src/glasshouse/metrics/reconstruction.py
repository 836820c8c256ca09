"""Metrics of reconstructed images: how close they are, and whether they show the right originals.

Every metric here pairs reconstructions with originals by least total squared error, each used once
(``match.assign``), and returns one number per original. An original without a pair is compared with a
mid-grey image (``match.take``) by the distances, and is a miss for the shares. Shape letters as in ``base``.
"""

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.errors import BadValue, Undefined
from glasshouse.images import mse, psnr, ssim
from glasshouse.metrics.base import Features, Hits, Metric, ScoreContext, Wording, check_images
from glasshouse.metrics.gallery import SsimTable
from glasshouse.metrics.match import UNMATCHED, assign, mse_table, take
from glasshouse.registry import Card

ROUNDING = 1e-9
"""Tolerance for ties, relative to the images' mean square: closer distances in a table may be equal."""


def pair_images(name: str, claimed: Tensor, truth: Tensor, context: ScoreContext) -> tuple[Tensor, Tensor]:
    """The reconstruction of each original, and the originals, both ``(B, C, H, W)`` in float64.

    Raises:
        BadValue: shapes do not match or a value is not finite; ``name`` is the calling metric.
    """
    check_images(name, claimed, truth)
    claimed, truth = claimed.double(), truth.double().to(claimed.device)
    if len(claimed) == len(truth) == 1:
        return claimed, truth
    return take(claimed, assign(mse_table(truth, claimed)), grey=context.grey), truth


def as_array(x: Tensor) -> NDArray[np.float64]:
    """A tensor as a float64 array."""
    return np.asarray(x.detach().double().cpu().numpy(), dtype=np.float64)


@final
@dataclass(frozen=True, kw_only=True)
class Mse(Metric):
    """Mean squared error per original, in squared pixel units; 0 is an exact copy."""

    card = Card(summary="mean squared error of the paired reconstruction, on the declared image range")
    wording = Wording(
        label="squared error",
        sentence="rebuilt private images with mean squared error {} (0 is a perfect copy)",
        explanation="Mean squared difference of the pixels: 0 is a perfect copy, so lower is worse. What "
        "guessing reaches depends on the images.",
        severity="images",
        order=240,
        worse="down",
        range=(0.0, math.inf),
    )

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        return self.compare(*pair_images("mse", claimed, truth, context), context=context)

    def compare(self, left: Tensor, right: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        del context
        return as_array(mse(left, right))

    def pairwise(self, candidates: Tensor, examples: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        """(R, N): every candidate against every example."""
        del context
        check_images("mse", candidates, examples)
        return mse_table(candidates, examples)


@final
@dataclass(frozen=True, kw_only=True)
class Psnr(Metric):
    """Peak signal-to-noise ratio per original, dB, at most 100; the peak is the width of the image range."""

    card = Card(
        summary="peak signal-to-noise ratio of the paired reconstruction, peak 1 on [0, 1], at most 100 dB"
    )
    wording = Wording(
        label="PSNR",
        sentence="rebuilt private images at PSNR {} (closeness; a small picture is recognisable above 18)",
        explanation="Closeness of the pixels in decibels: higher is worse, and above about 18 dB a small "
        "picture is recognisable. Images count as rebuilt where this lies above what guessing"
        " reaches.",
        display="level",
        severity="images",
        order=64,
        landmarks=(
            (30.0, "nearly a copy"),
            (18.0, "recognisable"),
            (13.0, "shapes"),
            (9.0, "hardly anything"),
        ),
        note="PSNR is that of images on [0, 1] with peak 1; a paper that takes peak 1 on [-1, 1] "
        "reports 6.02 dB less for the same images.",
        range=(0.0, 100.0),
        unit="dB",
    )

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        return self.compare(*pair_images("psnr", claimed, truth, context), context=context)

    def compare(self, left: Tensor, right: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        return as_array(psnr(left, right, data_range=context.data_range))

    def pairwise(self, candidates: Tensor, examples: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        """(R, N): every candidate against every example."""
        check_images("psnr", candidates, examples)
        error = np.maximum(mse_table(candidates, examples), context.data_range**2 * 1e-10)
        return np.asarray(10 * np.log10(context.data_range**2 / error), dtype=np.float64)


@final
@dataclass(frozen=True, kw_only=True)
class Ssim(Metric):
    """Structural similarity per original; see ``images.ssim`` for the window on small images."""

    card = Card(
        summary="structural similarity of the paired reconstruction",
        source="Wang et al. 2004, IEEE TIP 13(4)",
    )
    wording = Wording(
        label="SSIM",
        sentence="rebuilt private images with SSIM {} (likeness; 1 is a perfect copy)",
        explanation="Similarity of local structure: 1 is a perfect copy, about 0 an unrelated picture. "
        "Higher is worse. Textures alone can raise it, so SSIM does not count as rebuilt "
        "where PSNR lies below guessing.",
        severity="images",
        order=70,
        landmarks=((0.9, "nearly a copy"), (0.7, "recognisable"), (0.4, "shapes"), (0.1, "hardly anything")),
        chance="about 0 for unrelated natural images",
        range=(-1.0, 1.0),
    )

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        return self.compare(*pair_images("ssim", claimed, truth, context), context=context)

    def compare(self, left: Tensor, right: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        return as_array(ssim(left, right, data_range=context.data_range))

    def pairwise(self, candidates: Tensor, examples: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        """(R, N): every candidate against every example."""
        check_images("ssim", candidates, examples)
        return as_array(SsimTable(examples, data_range=context.data_range)(candidates))


@final
@dataclass(frozen=True, kw_only=True)
class MseR(Metric):
    """Mean squared error between feature vectors (the input of the last layer), paired by pixels."""

    card = Card(
        summary="mean squared error in feature space of the model under audit",
        source="Li et al. 2022, arXiv:2203.15696 (MSE-R)",
    )
    wording = Wording(
        label="feature error",
        sentence="rebuilt private images with feature error {} (0: the model sees no difference)",
        explanation="Mean squared difference of what the audited model sees in both images: 0 is the "
        "same, so lower is worse. What guessing reaches depends on the images.",
        severity="images",
        order=230,
        worse="down",
        range=(0.0, math.inf),
    )

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        return self.compare(*pair_images("mse_r", claimed, truth, context), context=context)

    def compare(self, left: Tensor, right: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        if context.features is None:
            raise _missing("mse_r", "features", "a function from images to feature vectors")
        with torch.no_grad():
            a, b = (_of_distinct(context.features, images) for images in (left.float(), right.float()))
        _check_features("mse_r", a, b, len(right))
        return as_array((a.double() - b.double()).square().flatten(1).mean(1))


def _of_distinct(features: Features, images: Tensor) -> Tensor:
    """Features of images of which many may be the same: guesses without an update often are."""
    distinct, places = torch.unique(images.flatten(1), dim=0, return_inverse=True)
    if len(distinct) == len(images):
        return features(images)
    return features(distinct.reshape(-1, *images.shape[1:]))[places]


@final
@dataclass(frozen=True, kw_only=True)
class Perceptual(Metric):
    """Distance between features of a separately trained public network; replaces LPIPS where it cannot run.

    At every position of every layer the channel vectors are scaled to length 1; the squared differences are
    summed over channels and averaged over positions, then over layers. LPIPS does the same but weights the
    channels by values fitted to human judgements; here all channels weigh the same, so values lie in [0, 4]
    and are comparable only within one network.
    """

    card = Card(
        summary="distance in features of a public network (stand-in for LPIPS, without learned weights)",
        source="after Zhang et al. 2018, arXiv:1801.03924, Eq. 1 with w = 1",
    )
    wording = Wording(
        label="perceptual distance",
        sentence="rebuilt private images at perceptual distance {} (0 is a perfect copy)",
        explanation="Difference of both images as a separate network sees them: 0 is the same, so lower "
        "is worse. What guessing reaches depends on the images.",
        severity="images",
        order=220,
        worse="down",
        range=(0.0, math.inf),
    )
    requires = frozenset({"stand_in"})

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        return self.compare(*pair_images("perceptual", claimed, truth, context), context=context)

    def compare(self, left: Tensor, right: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        if context.perceptual is None:
            raise _missing("perceptual", "perceptual", "a function from images to the activations of layers")
        with torch.no_grad():
            a_layers, b_layers = context.perceptual(left.float()), context.perceptual(right.float())
        pairs = list(zip(a_layers, b_layers, strict=True))
        if not pairs:
            raise _missing("perceptual", "perceptual", "at least one layer")
        total = torch.zeros(len(right), dtype=torch.float64, device=left.device)
        for a, b in pairs:
            _check_features("perceptual", a, b, len(right))
            distances = (_unit(a.double()) - _unit(b.double())).square().sum(1)  # (B, ...)
            total += distances.flatten(1).mean(1)
        return as_array(total / len(pairs))


@final
@dataclass(frozen=True, kw_only=True)
class Identification(Hits):
    """1 if, among the original and M - 1 distractors, the original is nearest to its reconstruction; else 0.

    Nearest by mean squared error. A tie counts against the attack, so a constant image over equal distractors
    identifies nothing. Chance is 1/M for a reconstruction that is independent of the original; a good *mean*
    image has no advantage here, which is why this metric complements the distances.
    """

    card = Card(summary="share of originals that are the nearest of M images to their own reconstruction")
    wording = Wording(
        label="identification",
        headline="{} rebuilt well enough to be recognised",
        sentence="rebuilt recognisable examples: for {} the right original was picked from among look-alikes",
        explanation="How often the right original is found among many look-alikes from the rebuilt image "
        "alone: higher is worse; guessing finds 1 in as many as there are candidates.",
        display="rate",
        unit="share",
        range=(0.0, 1.0),
        severity="images",
        order=62,
        chance="1/M, M = distractors + 1",
    )
    requires = frozenset({"distractors"})

    def chance(self, context: ScoreContext) -> float | None:
        return None if context.distractors is None else 1 / (len(context.distractors) + 1)

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        others = _others(context)
        check_images("identification", claimed, truth)
        check_images("identification", others, truth)
        pairing = assign(mse_table(truth, claimed))
        matched, hits = pairing != UNMATCHED, np.zeros(len(truth))
        left, right = claimed[torch.from_numpy(pairing[matched])], truth[torch.from_numpy(matched)]
        if len(left):
            hits[matched] = self.compare(left.to(right), right, context=context)
        return hits

    def compare(self, left: Tensor, right: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        """1 for each pair whose claimed image is nearer to its original than to every distractor."""
        others = _others(context)
        images, originals = left.double().flatten(1), right.double().flatten(1)
        nearest = torch.from_numpy(mse_table(left, others.to(right)).min(1)).to(images)
        others = others.to(right).double().flatten(1)
        own = (images - originals).square().mean(1)
        hits = own < nearest
        size = torch.maximum(images.square().mean(1), others.square().mean(1).max())
        for i in torch.nonzero((own - nearest).abs() <= ROUNDING * size).flatten().tolist():
            pool = torch.cat((originals[i : i + 1], others))
            distance = (pool - images[i]).square().sum(1)
            hits[i] = distance[0] < distance[1:].min()
        return as_array(hits)


def _others(context: ScoreContext) -> Tensor:
    if context.distractors is None or len(context.distractors) == 0:
        raise _missing("identification", "distractors", "at least one other image")
    return context.distractors


def _unit(x: Tensor) -> Tensor:
    length: Tensor = x.norm(dim=1, keepdim=True)
    return x / length.clamp_min(1e-10)


def _missing(name: str, what: str, needs: str) -> Undefined:
    return Undefined(
        f"metric '{name}'",
        needs=f"{needs}, as '{what}' of the score context",
        got="none",
        fix=f"let the audit provide {what}, or drop the metric",
    )


def _check_features(name: str, a: Tensor, b: Tensor, count: int) -> None:
    good = a.shape == b.shape and a.ndim >= 2 and len(a) == count
    if not good or not bool(torch.isfinite(a).all() & torch.isfinite(b).all()):
        raise BadValue(
            f"metric '{name}'",
            needs=f"finite features of {count} images, one shape on both sides",
            got=f"{tuple(a.shape)} and {tuple(b.shape)}",
            fix="check the function: images (B, C, H, W) in, (B, ...) out",
        )
