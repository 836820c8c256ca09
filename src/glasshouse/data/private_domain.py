"""Roles by class and domain: target classes are private in one domain, everything else is public.

Some classes (people) are targets: their images in the private domain are private to the clients. Public are
the private-domain images of the other classes (D_0) and the shifted images of all classes (D_a).

Source: Takahashi et al. 2023, "Breaching FedMD", CVPR, sections 2 and 4.1. Where we differ: images may be
held out to measure utility, which the paper does not do.

Shape letters: J classes, L of them targets.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from glasshouse.data.base import DataSource
from glasshouse.data.splits import check_disjoint, image_digests
from glasshouse.errors import BadValue
from glasshouse.rng import Rng
from glasshouse.wire import Batch

Shift = Callable[[Tensor], Tensor]


@final
@dataclass(frozen=True, kw_only=True)
class ClassWant:
    """Requested classes and numbers of images.

    Attributes:
        targets: L, number of private classes; drawn at random if ``chosen`` is empty.
        chosen: the target classes, in the source's numbering.
        identities: J, number of classes used; 0: all.
        per_class: number of images used per class; 0: all.
        heldout: share of each target's private-domain images that nobody in the federation holds, in [0, 1).
        same_photos: shift the same images that are used unshifted (a mask drawn on a photo); else half of
            each class's images is used unshifted, and the other half shifted.
        sensitive: maximal size of D_0, the public private-domain images; 0: no limit.
    """

    targets: int
    chosen: tuple[int, ...] = ()
    identities: int = 0
    per_class: int = 0
    heldout: float = 0.0
    same_photos: bool = True
    sensitive: int = 0


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class ClassRoles:
    """Images per role. Classes are renumbered: the targets are 0 … L-1, the others follow.

    Attributes:
        private: the targets' images in the private domain.
        public: first private-domain images (D_0), then shifted ones (D_a).
        sensitive: size of D_0.
        heldout: held-out private-domain images of the targets; None: none.
        targets: L.
        classes: source label of each new label, (J,).
    """

    private: Batch
    public: Batch
    sensitive: int
    heldout: Batch | None
    targets: int
    classes: tuple[int, ...]


def deal_classes(
    source: DataSource,
    want: ClassWant,
    *,
    shifts: Sequence[Shift] = (),
    other: DataSource | None = None,
    split: str = "",
    rng: Rng,
) -> ClassRoles:
    """Assign classes and images to roles.

    Args:
        source: the private domain.
        other: the same classes in another domain; None: ``source`` itself.
        want: requested classes and numbers of images.
        shifts: applied in order to produce D_a; required if ``other`` is None.
        split: split of both sources; empty: all splits together.
        rng: draws the targets and the assignment of images.

    Raises:
        BadValue: neither a shift nor another source, too few classes or images, or different class names.

    Examples:
        >>> from glasshouse.data.sources import load
        >>> from glasshouse.data.domains import LowerHalfMask
        >>> want = ClassWant(targets=4, per_class=10)
        >>> roles = deal_classes(load("digits"), want, shifts=[LowerHalfMask()], rng=Rng.root(0))
        >>> len(roles.private), roles.sensitive, len(roles.public)
        (40, 60, 160)
    """
    _check(source, want, shifts, other)
    inputs, labels = _pool(source, split)
    classes = _classes(source, want, labels, rng.child("classes"))
    # Private classes are numbered anew, so that a number does not say which of all it is.
    new = torch.full((source.classes,), -1)
    new[torch.tensor(classes)] = torch.arange(len(classes))
    private, sensitive, heldout, shifted = _rows(labels, classes, want, halves=other is None, rng=rng)
    # Order is drawn anew for each part: it would otherwise pair public images with private ones.
    sensitive = sensitive[torch.randperm(len(sensitive), generator=rng.child("sensitive").torch())]
    sensitive = sensitive[: want.sensitive or None]
    shifted_images = Batch(inputs=inputs[shifted], labels=labels[shifted])
    if other is not None:
        shifted_images = _of_classes(_pool(other, split), classes, want.per_class)
    turn = torch.randperm(len(shifted_images), generator=rng.child("shifted").torch())
    public_inputs = shifted_images.inputs[turn]
    for shift in shifts:
        public_inputs = shift(public_inputs)
    roles = ClassRoles(
        private=Batch(inputs=inputs[private], labels=new[labels[private]]),
        public=Batch(
            inputs=torch.cat([inputs[sensitive], public_inputs]),
            labels=new[torch.cat([labels[sensitive], shifted_images.labels[turn]])],
        ),
        sensitive=len(sensitive),
        heldout=Batch(inputs=inputs[heldout], labels=new[labels[heldout]]) if len(heldout) else None,
        targets=want.targets,
        classes=classes,
    )
    parts = {"private": roles.private, "public": roles.public, "heldout": roles.heldout}
    check_disjoint({name: part for name, part in parts.items() if part is not None})
    return roles


def _check(source: DataSource, want: ClassWant, shifts: Sequence[Shift], other: DataSource | None) -> None:
    most = want.identities or source.classes
    if not shifts and other is None:
        needs = "another domain for the public images of the targets"
        got = "no shift and no second source"
        fix = 'set data.domains.shifts = ["lower_half_mask"], or data.domains.other'
    elif other is not None and (
        other.class_names != source.class_names or other.input_shape != source.input_shape
    ):
        needs = "a second source with the same classes and image size"
        got = f"{source.classes} classes of {source.input_shape} and {other.classes} of {other.input_shape}"
        fix = "name the classes alike, and set data.resize"
    elif not 1 <= want.targets < most <= source.classes:
        needs = f"1 <= targets < identities <= {source.classes}"
        got = f"targets = {want.targets}, identities = {most}"
        fix = "ask for fewer targets, or for more classes"
    elif want.chosen and (len(set(want.chosen)) != want.targets or max(want.chosen) >= source.classes):
        needs = f"{want.targets} different classes below {source.classes}"
        got, fix = str(list(want.chosen)), "correct data.private_classes, or leave it out"
    else:
        return
    raise BadValue(f"private classes of data '{source.name}'", needs=needs, got=got, fix=fix)


def _pool(source: DataSource, split: str) -> tuple[Tensor, Tensor]:
    """All images without duplicates: the first of identical images is kept."""
    parts = [source.split(name).batch() for name in ([split] if split else source.splits)]
    inputs, labels = torch.cat([p.inputs for p in parts]), torch.cat([p.labels for p in parts])
    first: dict[bytes, int] = {}
    for row, content in enumerate(image_digests(inputs)):
        first.setdefault(content, row)
    rows = torch.tensor(sorted(first.values()))
    return inputs[rows], labels[rows]


def _rows(
    labels: Tensor, classes: tuple[int, ...], want: ClassWant, *, halves: bool, rng: Rng
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Row indices of the private images, of D_0, of held-out images, and of images to be shifted."""
    parts: tuple[list[Tensor], ...] = ([], [], [], [])
    for label, old in enumerate(classes):
        rows = (labels == old).nonzero().squeeze(1)
        rows = rows[torch.randperm(len(rows), generator=rng.child(f"images/{old}").torch())]
        rows = rows[: want.per_class or None]
        target = label < want.targets
        n_heldout = round(want.heldout * len(rows)) if target else 0
        images = rows[n_heldout:]
        half = (len(images) + 1) // 2 if halves and not want.same_photos else len(images)
        parts[0 if target else 1].append(images[:half])
        parts[2].append(rows[:n_heldout])
        parts[3].append(images if half == len(images) else images[half:])
    private, sensitive, heldout, shifted = (torch.cat(part) for part in parts)
    return private, sensitive, heldout, shifted


def _classes(source: DataSource, want: ClassWant, labels: Tensor, rng: Rng) -> tuple[int, ...]:
    order = torch.randperm(source.classes, generator=rng.torch()).tolist()
    present = set(labels.tolist())
    order = [*want.chosen, *(c for c in order if c not in want.chosen and c in present)]
    return tuple(order[: want.identities or len(order)])


def _of_classes(pool: tuple[Tensor, Tensor], classes: tuple[int, ...], per_class: int) -> Batch:
    """Images of the other domain before any shift, with the source's labels."""
    inputs, labels = pool
    rows = torch.cat([(labels == old).nonzero().squeeze(1)[: per_class or None] for old in classes])
    return Batch(inputs=inputs[rows], labels=labels[rows])
