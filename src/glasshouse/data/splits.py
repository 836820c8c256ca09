"""Assign the images of a source to roles, so that no image is in two of them.

Roles are disjoint in content: identical images under different indices count as one, and only the first role
gets it. Roles are served in the order of ``ROLES``.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Final, Literal, final, get_args

import numpy as np
import torch
from torch import Tensor

from glasshouse.data.base import DataSource, Examples
from glasshouse.data.targets import class_codes
from glasshouse.errors import BadValue
from glasshouse.limits import Count, Fix, check_value
from glasshouse.rng import Rng
from glasshouse.wire import Batch

Role = Literal["private", "auxiliary", "heldout", "public"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)


@final
@dataclass(frozen=True, kw_only=True)
class RoleRequest:
    """The images requested for one role.

    Attributes:
        size: number of images; None: all that the other roles leave. Not 0: omit the role instead.
        split: split of the source; empty: all splits together.
        classes: only images with these labels; empty: any.
    """

    size: int | None = None
    split: str = ""
    classes: tuple[int, ...] = ()


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Roles:
    """Images per role. None: the role was not requested.

    Attributes:
        private: the pool that is partitioned into clients.
        auxiliary: given to the adversary.
        public: available to all parties (pre-training, logit protocols).
        heldout: used to measure utility and as distractors.
        duplicates: per role, number of images excluded because an identical one is in another role.
    """

    private: Batch | None = None
    auxiliary: Batch | None = None
    heldout: Batch | None = None
    public: Batch | None = None
    spare: Batch | None = None
    duplicates: Mapping[Role, int]

    def parts(self) -> dict[Role, Batch]:
        """The non-empty roles."""
        by_role = {role: getattr(self, role) for role in ROLES}
        return {role: batch for role, batch in by_role.items() if batch is not None}


@dataclass(frozen=True, kw_only=True)
class _Pool:
    """All requested images: split, row, label, and an id of the content, for each."""

    source: DataSource
    names: tuple[str, ...]
    split: Tensor
    row: Tensor
    label: Tensor
    content: Tensor

    def batch(self, index: Tensor) -> Batch:
        parts = []
        for number, name in enumerate(self.names):
            rows = index[self.split[index] == number]
            if len(rows):
                parts.append(self.source.splits[name].batch(self.row[rows]))
        if len(parts) == 1:
            return parts[0]
        groups = [part.groups for part in parts if part.groups is not None]
        return Batch(
            inputs=torch.cat([part.inputs for part in parts]),
            labels=torch.cat([part.labels for part in parts]),
            groups=torch.cat(groups) if len(groups) == len(parts) else None,
        )


def deal(
    source: DataSource,
    wants: Mapping[Role, RoleRequest],
    *,
    by: Literal["image", "label"] = "image",
    spare: int = 0,
    rng: Rng,
) -> Roles:
    """Draw images for every role in ``wants`` without replacement; roles with a size are served first.

    Args:
        source: a validated data set.
        wants: the request of each role.
        by: ``image`` assigns single images; ``label`` assigns whole labels (people), so that nobody's
            images are in two roles: a role gets people until it has enough images.
        spare: maximal number of further images, drawn like the held-out ones from what all roles leave.
        rng: decides the assignment.

    Raises:
        BadValue: a role is unknown, requests 0 images, or finds too few; a split or class is unknown.

    Examples:
        >>> from glasshouse.data.sources import load
        >>> private = RoleRequest(size=8, split="test")
        >>> wants = {"private": private, "auxiliary": RoleRequest(size=100, split="train")}
        >>> roles = deal(load("digits"), wants, rng=Rng.root(0))
        >>> {role: len(batch) for role, batch in roles.parts().items()}
        {'private': 8, 'auxiliary': 100}
    """
    _check(source, wants)
    pool = _pool(source, wants)
    # A content (equal pixels) or key (a person) belongs to the first role that draws it, and to no other.
    owner = torch.full((int(pool.content.max()) + 1,), -1)
    keys = pool.label if by == "label" else pool.content
    key_owner = torch.full((int(keys.max()) + 1,), -1)
    batches: dict[Role, Batch] = {}
    duplicates: dict[Role, int] = {}
    used_rows = torch.zeros(len(pool.row), dtype=torch.bool)
    # Roles without a size take what is left, so they come last.
    for role in sorted(wants, key=lambda r: (wants[r].size is None, ROLES.index(r))):
        number = ROLES.index(role)
        free = _eligible(pool, wants[role]) & ~used_rows
        available = free & ((owner[pool.content] == -1) | (owner[pool.content] == number))
        # Images that only their copy in another role keeps out are counted for the page.
        duplicates[role] = int((free & ~available).sum())
        available &= (key_owner[keys] == -1) | (key_owner[keys] == number)
        index = _choose(available.nonzero().squeeze(1), keys, wants[role].size, rng.child(f"deal/{role}"))
        if len(index) < (wants[role].size or 1):
            raise _too_few(source, role, wants[role], int(available.sum()), duplicates[role])
        used_rows[index] = True
        owner[pool.content[index]] = number
        key_owner[keys[index]] = number
        batches[role] = pool.batch(index)
    # Further held-out images come from what every role left.
    further = None
    if spare and "heldout" in wants:
        free = _eligible(pool, wants["heldout"]) & ~used_rows & (owner[pool.content] == -1)
        free &= (key_owner[keys] == -1) | (key_owner[keys] == ROLES.index("heldout"))
        further = _drawn(pool, free, spare, rng.child("deal/spare"))
    check_disjoint({name: part for name, part in (*batches.items(), ("spare", further)) if part is not None})
    return Roles(**batches, spare=further, duplicates=duplicates)


def _drawn(pool: _Pool, free: Tensor, most: int, rng: Rng) -> Batch | None:
    """At most ``most`` distinct free images, drawn at random; None: there are none."""
    index = _choose(free.nonzero().squeeze(1), pool.content, most, rng)
    _, first = np.unique(pool.content[index].numpy(), return_index=True)
    return pool.batch(index[torch.from_numpy(np.sort(first))]) if len(index) else None


def check_disjoint(parts: Mapping[Role, Batch] | Mapping[str, Batch]) -> None:
    """Raise if two parts contain an identical image.

    :func:`deal` calls it for the parts of one source; call it again if parts come from two sources.

    Raises:
        BadValue: two parts overlap; the message names them and the number of shared images.
    """
    contents = {name: set(image_digests(batch.inputs)) for name, batch in parts.items()}
    for left, right in combinations(contents, 2):
        if shared := contents[left] & contents[right]:
            raise BadValue(
                f"{left} and {right} data",
                needs="no image in both: an adversary that holds a judged image proves nothing",
                got=f"{len(shared)} images in both",
                fix="take the parts from different splits or sources",
            )


def _check(source: DataSource, wants: Mapping[Role, RoleRequest]) -> None:
    subject = f"roles of data '{source.name}'"
    if not wants:
        raise BadValue(subject, needs="at least one role", got="none", fix=f"ask for {', '.join(ROLES)}")
    for role, want in wants.items():
        if role not in ROLES:
            raise BadValue(subject, needs=f"roles among {', '.join(ROLES)}", got=repr(role), fix="rename it")
        check_value(subject, role, want.size, Annotated[Count, Fix("leave the role out for none")] | None)
        if wrong := [k for k in want.classes if not 0 <= k < source.classes]:
            raise BadValue(
                subject,
                needs=f"classes from 0 to {source.classes - 1}",
                got=f"{wrong} for {role}",
                fix="correct them",
            )
        if want.split:
            source.split(want.split)


def _pool(source: DataSource, wants: Mapping[Role, RoleRequest]) -> _Pool:
    everywhere = any(not want.split for want in wants.values())
    split_names = {want.split for want in wants.values()}
    names = tuple(name for name in source.splits if everywhere or name in split_names)
    parts: list[Examples] = [source.splits[name] for name in names]
    numbers: dict[bytes, int] = {}
    content = [numbers.setdefault(c, len(numbers)) for part in parts for c in image_digests(part.stored)]
    return _Pool(
        source=source,
        names=names,
        split=torch.cat([torch.full((len(part),), i) for i, part in enumerate(parts)]),
        row=torch.cat([torch.arange(len(part)) for part in parts]),
        label=torch.cat([class_codes(part.labels) for part in parts]),
        content=torch.tensor(content),
    )


def image_digests(pixels: Tensor) -> list[bytes]:
    """One digest per image."""
    array = np.ascontiguousarray(pixels.cpu().numpy())
    return [hashlib.sha256(image).digest() for image in array]


def _eligible(pool: _Pool, want: RoleRequest) -> Tensor:
    fits = torch.ones(len(pool.row), dtype=torch.bool)
    if want.split:
        fits &= pool.split == pool.names.index(want.split)
    if want.classes:
        fits &= torch.isin(pool.label, torch.tensor(want.classes))
    return fits


def _choose(candidates: Tensor, keys: Tensor, size: int | None, rng: Rng) -> Tensor:
    """Draw ``size`` candidates in random order, from as few randomly drawn keys as needed."""
    shuffled = candidates[torch.randperm(len(candidates), generator=rng.child("images").torch())]
    if size is None:
        return shuffled
    counts = torch.bincount(keys[shuffled], minlength=int(keys.max()) + 1)
    order = torch.randperm(len(counts), generator=rng.child("keys").torch())
    order = order[counts[order] > 0]
    enough = order[counts[order].cumsum(0) - counts[order] < size]
    return shuffled[torch.isin(keys[shuffled], enough)][:size]


def _too_few(source: DataSource, role: Role, want: RoleRequest, available: int, duplicates: int) -> BadValue:
    where = f"split '{want.split}'" if want.split else "all splits"
    less = f", {duplicates} more are copies of other roles' images" if duplicates else ""
    return BadValue(
        f"{role} part of data '{source.name}'",
        needs=f"{want.size or 'at least 1'} images of {where}",
        got=f"{available} that no other role holds{less}",
        fix=f"ask for fewer, or take '{role}' from another split",
    )
