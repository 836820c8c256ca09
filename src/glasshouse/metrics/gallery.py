"""Mean images of classes and a claimed image's similarity to each, for scoring class representatives.

Shape letters: B claimed images, J classes, L private ones, M candidates, C channels, H and W pixels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, final

import torch
from torch import Tensor

from glasshouse.cache import digest
from glasshouse.errors import BadValue
from glasshouse.images import ssim_filters, ssim_window
from glasshouse.wire import Batch

PRIOR: Final = "mean of the public images of the private domain"
OWN_PRIOR: Final = "the attack's own prior image"
PUBLIC: Final = "public mean of the class itself"
_CANDIDATES: Final = 16
"""Candidates compared at a time: batches larger than the processor's cache take twice as long."""


@final
class SsimTable:
    """SSIM of any image with each of M candidates, whose means and variances are computed only once.

    Equal to :func:`glasshouse.images.ssim`; the Gaussian filter is two matrix products.

    Args:
        candidates: (M, C, H, W).
        data_range: largest minus smallest possible pixel.

    Examples:
        >>> x = torch.linspace(0, 1, 2 * 64).view(2, 1, 8, 8)
        >>> SsimTable(x, data_range=1.0)(x[:1]).round(decimals=4).tolist()[0][0]
        1.0
    """

    def __init__(self, candidates: Tensor, *, data_range: float) -> None:
        height, width = int(candidates.shape[2]), int(candidates.shape[3])
        side = ssim_window(height, width)
        if side < 3:
            raise BadValue(
                "metric on class means",
                needs="a region of at least 3 × 3 pixels",
                got=f"{height} × {width}",
                fix="use larger images (data.resize)",
            )
        self._down, self._across = ssim_filters(height, width, like=candidates.double())
        self._c1, self._c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
        self._parts = [(y, *self._moments(y)) for y in torch.split(candidates.double(), _CANDIDATES)]

    def __call__(self, images: Tensor) -> Tensor:
        """(B, C, H, W) → (B, M)."""
        return torch.stack([self._row(x[None]) for x in images.double()])

    def _row(self, x: Tensor) -> Tensor:
        mean, variance = self._moments(x)
        alike = []
        for y, other_mean, other_variance in self._parts:
            means = mean * other_mean
            both = self._filter(x * y) - means
            top = (2 * means + self._c1) * (2 * both + self._c2)
            below = (mean.square() + other_mean.square() + self._c1) * (variance + other_variance + self._c2)
            alike.append((top / below).flatten(1).mean(1))
        return torch.cat(alike)

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Local means and variances."""
        mean = self._filter(x)
        return mean, self._filter(x.square()) - mean.square()

    def _filter(self, x: Tensor) -> Tensor:
        return self._down @ x @ self._across.T


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Gallery:
    """What class representatives are compared with; available to the scorer only, never to an attack.

    Attributes:
        people: mean private-domain image of every class, (J, C, H, W); the L private classes first.
        known: which classes have one, (J,).
        public: mean public image of every class, both domains together.
        targets: L.
        rows: first scored row, and one past the last.
        data_range: of the pixels.
        prior: mean public image of the private domain, (1, C, H, W).
        owners: the client that holds each private class, (L,).
        classes: the data source's id of each private class, (L,): the same person in every seed.
    """

    people: Tensor
    known: Tensor
    public: Tensor
    targets: int
    rows: tuple[int, int]
    prior: Tensor
    owners: Tensor
    classes: tuple[int, ...]
    data_range: float = 1.0
    _tables: dict[tuple[int, int], SsimTable] = field(default_factory=dict)
    _seen: dict[str, Tensor] = field(default_factory=dict)
    _before: tuple["Gallery", Tensor] | None = None

    def alike(self, images: Tensor, *, whole: bool = False) -> Tensor:
        """SSIM with every class mean, (B, 2 J): first ``people``, then ``public``. Cached for other metrics.

        Args:
            images: (B, C, H, W).
            whole: compare the whole pictures, not only the scored rows.
        """
        if self._before is not None:
            gallery, order = self._before
            return gallery.alike(images, whole=whole)[:, order]
        top, bottom = rows = (0, images.shape[2]) if whole else self.rows
        if rows not in self._tables:
            means = torch.cat([self.people, self.public])[:, :, top:bottom]
            self._tables[rows] = SsimTable(means, data_range=self.data_range)
        key = f"{rows} {digest(images)}"
        if key not in self._seen:
            self._seen[key] = self._tables[rows](images[:, :, top:bottom])
        return self._seen[key]

    def holding(self, private: Batch, shards: Mapping[int, Sequence[int]]) -> "Gallery":
        """A copy with other private examples for the private classes, and hence other means and owners."""
        means = [private.inputs[private.labels == j].mean(0) for j in range(self.targets)]
        return replace(
            self,
            people=torch.cat([torch.stack(means), self.people[self.targets :]]),
            owners=owners_of(private, shards, self.targets),
            _tables={},
            _seen={},
            _before=None,
        )

    def moved(self, by: int) -> "Gallery":
        """A copy in which every private class has the mean and the owner of the one ``by`` classes before."""
        order = torch.arange(2 * len(self.people))
        order[: self.targets] = order[: self.targets].roll(by)
        people, owners = self.people[order[: len(self.people)]], self.owners.roll(by)
        return replace(self, people=people, owners=owners, _before=(self, order))


def owners_of(private: Batch, shards: Mapping[int, Sequence[int]], targets: int) -> Tensor:
    """The client that holds each private class, (L,); ``shards``: each client's rows of ``private``."""
    owners = torch.zeros(targets, dtype=torch.int64)
    for client, rows in shards.items():
        owners[private.labels[torch.tensor(rows, dtype=torch.int64)]] = client
    return owners


def null_images(
    gallery: Gallery, labels: Tensor, prior: Tensor | None, further: Mapping[str, Batch] | None = None
) -> dict[str, Tensor]:
    """The images that each null adversary, by name, claims for every class.

    Args:
        gallery: mean images of classes.
        labels: of the classes, (L,).
        prior: the attack's own prior image of every class, (J, C, H, W); None if it has none.
        further: what others claimed, by name, one image per class; one that lacks a class is left out.
    """
    images = {PRIOR: gallery.prior.expand(len(labels), -1, -1, -1), PUBLIC: gallery.public[labels]}
    if prior is not None:
        images[OWN_PRIOR] = prior[labels]
    for name, claimed in (further or {}).items():
        places = {label: row for row, label in enumerate(claimed.labels.tolist())}
        if set(labels.tolist()) <= set(places):
            images[name] = claimed.inputs[[places[label] for label in labels.tolist()]]
    return images
