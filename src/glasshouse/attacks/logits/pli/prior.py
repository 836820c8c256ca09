"""Prior images: guesses of what a private class looks like, made without uploads.

Source: Takahashi et al. 2023, section 3.3: Eq. 8 (mean) and Eq. 9 (a translation of the class's images of the
other domain). All in [-1, 1].
"""

from dataclasses import dataclass
from typing import Literal, final, get_args

from torch import Tensor

from glasshouse.attacks.logits.material import Material
from glasshouse.attacks.logits.pli.translate.cyclegan import cyclegan
from glasshouse.attacks.logits.pli.translate.paired import apply_network, ridge, train_paired
from glasshouse.attacks.logits.pli.translate.pairs import pairs_of
from glasshouse.cache import Checkpoint, digest, load_or_make
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.limits import Count, check_ranges
from glasshouse.rng import Rng
from glasshouse.tensors import class_means

METHOD = 1
"""Version of the translators; increase it when one changes, to invalidate cached images."""
Prior = Literal["none", "mean", "ridge", "paired", "cyclegan"]


@final
@dataclass(frozen=True, kw_only=True)
class TranslatorTraining:
    """Training of a learned translation between the two domains.

    Attributes:
        epochs: over the public images of the classes that are not private.
    """

    epochs: Count = 60

    def __post_init__(self) -> None:
        check_ranges(self, "training of the translator")


def prior_images(
    kind: Prior, evidence: Material, *, epochs: int, rng: Rng
) -> tuple[Tensor | None, Tensor | None]:
    """Prior images for D_0, (n, C, H, W) or one for all, and for the private classes, likewise.

    Raises:
        BadValue: no such prior.
        Inapplicable: a learned prior without public labels.
    """
    if kind not in get_args(Prior):
        raise BadValue(
            "attack 'pli'", needs=f"prior among {', '.join(get_args(Prior))}", got=kind, fix="correct it"
        )
    if kind == "none":
        return None, None
    if kind == "mean":
        mean = evidence.scaled(evidence.known.inputs).mean(0, keepdim=True)
        return mean, mean
    if not evidence.labelled:
        raise Inapplicable(
            "attack 'pli'",
            needs=f"public labels for the learned prior '{kind}'",
            got="unlabelled public data",
            fix='set prior = "mean", or use fedmd or fedgems',
        )
    by_class = _translate_means(kind, evidence, epochs=epochs, rng=rng)
    return by_class[evidence.known.labels], by_class[: evidence.targets]


def _translate_means(kind: Prior, evidence: Material, *, epochs: int, rng: Rng) -> Tensor:
    """For every class the mean of its translated images of the shifted domain (Eq. 9), (J, C, H, W)."""
    pairs = pairs_of(evidence)
    shifted = evidence.scaled(evidence.public.inputs[evidence.sensitive :])
    if len(pairs.shifted) < 2:
        raise Inapplicable(
            "attack 'pli'",
            needs=f"classes with public images in both domains, for the prior '{kind}'",
            got=f"{len(pairs.shifted)} pairs",
            fix='set prior = "mean"',
        )

    def make(checkpoint: Checkpoint) -> dict[str, Tensor]:
        if kind == "ridge":
            return {"made": ridge(pairs, shifted)}
        train = train_paired if kind == "paired" else cyclegan
        return {"made": apply_network(train(pairs, epochs=epochs, rng=rng, checkpoint=checkpoint), shifted)}

    key = {
        "method": [kind, METHOD, epochs if kind != "ridge" else 0],
        "public": digest({"inputs": evidence.public.inputs, "labels": evidence.public.labels}),
        "sensitive": evidence.sensitive,
        "targets": evidence.targets,
        "rng": rng.seed(),
    }
    translated = load_or_make("translation", key, make)["made"].to(shifted.device)
    labels = evidence.public.labels[evidence.sensitive :]
    return class_means(translated, labels, int(evidence.public.labels.max()) + 1)
