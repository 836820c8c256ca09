"""Forms in which honest models arrive: under a wrapper's names, parametrised, with adapters still at zero.

What is undone here is only how a model is written down. Every rule is applied to the weights that its layers
compute with.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from torch import Tensor

from glasshouse.tensors import Lazy, renamed

COMPILED: Final = "_orig_mod."
"""What ``torch.compile`` puts into names, at any level."""
STATISTICS: Final = ("running_mean", "running_var", "num_batches_tracked")
"""Last parts of the names of tensors that are no parameters and that lists of trainable arrays leave out."""
_POSITION: Final = re.compile(r"arr_\d+")
_PAIRS: Final = (
    (re.compile(r"lora_B(?=\.|$)"), "lora_A"),
    (re.compile(r"lora_b(?=\.|$)"), "lora_a"),
    (re.compile(r"lora_up(?=\.|$)"), "lora_down"),
    (re.compile(r"lora_embedding_A(?=\.|$)"), "lora_embedding_B"),
)
"""Adapters that start at zero by the method's definition, and the partner that does not."""
_NEW_NORM: Final = ".parametrizations."


def by_position(tensors: Mapping[str, Any]) -> list[Any] | None:
    """Arrays that were saved without names, as by ``numpy.savez``, in their order; None: they have names.

    Examples:
        >>> by_position({"arr_10": "k", "arr_2": "c"}), by_position({"weight": "w"})
        (['c', 'k'], None)
    """
    if not tensors or not all(_POSITION.fullmatch(str(name)) for name in tensors):
        return None
    return [tensors[name] for name in sorted(tensors, key=lambda name: int(str(name).removeprefix("arr_")))]


def without_prefix(tensors: Mapping[str, Tensor], names: frozenset[str]) -> tuple[Mapping[str, Tensor], str]:
    """``tensors`` under the agreed ``names``, and what stands before or in the received ones.

    A wrapper (DataParallel, torch.compile, Lightning) puts one prefix before all names. It is taken off, or
    put on where the agreed names have it, if this gives more names in common than before.
    """
    received = {name: name for name in tensors}
    plain = {name.replace(COMPILED, ""): name for name in tensors}
    compiled = COMPILED if len(plain) == len(tensors) and plain.keys() != tensors.keys() else ""
    best, said = received, ""
    options = [(received, "")] + ([(plain, compiled)] if compiled else [])
    for named, words in options:
        for prefix in ("", *_prefixes(named)):
            shorter = {name.removeprefix(prefix): own for name, own in named.items()}
            if len(shorter.keys() & names) > len(best.keys() & names):
                best, said = shorter, words + prefix
        for prefix in _prefixes(dict.fromkeys(names)):
            longer = {prefix + name: own for name, own in named.items()}
            if len(longer.keys() & names) > len(best.keys() & names):
                best, said = longer, words
    return renamed(tensors, best), said


def _prefixes(named: Mapping[str, object]) -> list[str]:
    """Prefixes, up to a dot, that all names share: the shortest first."""
    if not named:
        return []
    parts = [name.split(".") for name in named]
    shared = []
    for place in range(min(map(len, parts)) - 1):
        if len({part[place] for part in parts}) > 1:
            break
        shared.append(".".join(parts[0][: place + 1]) + ".")
    return shared


def is_statistic(name: str) -> bool:
    """Whether a tensor of this name is a running statistic, and no parameter.

    Examples:
        >>> is_statistic("bn1.running_mean"), is_statistic("bn1.weight")
        (True, False)
    """
    return name.rpartition(".")[2] in STATISTICS


def effective(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """``tensors`` with the weight that each parametrised layer computes with, in the place of its parts.

    Weight norm (``weight_g`` and ``weight_v``, or ``parametrizations.weight.original0`` and ``original1``)
    and spectral norm (``weight_orig`` with ``weight_u`` and ``weight_v``, or
    ``parametrizations.weight.original`` with ``0._u`` and ``0._v``). Parts that do not fit together are left.

    Examples:
        >>> parts = {"fc.weight_g": Tensor([[1], [1]]), "fc.weight_v": Tensor([[3, 4], [0, 2]])}
        >>> effective(parts)["fc.weight"].tolist()
        [[0.6000000238418579, 0.800000011920929], [0.0, 1.0]]
    """
    left: dict[str, Callable[[], Tensor]] = {name: partial(tensors.__getitem__, name) for name in tensors}

    def parts(keys: list[str]) -> list[Tensor | None]:
        return [left[key]() if key in left else None for key in keys]

    # The four spellings of two parametrisations, by the name that only one of them has.
    for name in tensors:
        layer, _, last = name.rpartition(".")
        if last == "weight_g":
            keys = [name, f"{layer}.weight_v"]
            weight = _normed(*parts(keys))
        elif name.endswith(f"{_NEW_NORM}weight.original0"):
            layer, keys = _owner(name), [name, name[:-1] + "1"]
            weight = _normed(*parts(keys))
        elif last == "weight_orig":
            keys = [name, f"{layer}.weight_u", f"{layer}.weight_v"]
            weight = _spectral(*parts(keys))
        elif name.endswith(f"{_NEW_NORM}weight.original"):
            layer, stem = _owner(name), name.removesuffix("original")
            keys = [name, f"{stem}0._u", f"{stem}0._v"]
            weight = _spectral(*parts(keys))
        else:
            continue
        target = f"{layer}.weight" if layer else "weight"
        # Parts that do not fit, or a weight that stands there anyway, are looked at as they are.
        if weight is None or target in left:
            continue
        for key in keys:
            left.pop(key)
        left[target] = partial(_itself, weight)
    return Lazy(lambda: left, lambda name: left[name](), int)


def _itself(t: Tensor) -> Tensor:
    return t


def _owner(name: str) -> str:
    """The layer whose weight is parametrised."""
    return name.partition(_NEW_NORM)[0]


def _normed(size: Tensor | None, direction: Tensor | None) -> Tensor | None:
    """``g · v / |v|``, with one norm for each entry of ``g``; None: shapes that do not fit."""
    if size is None or direction is None or size.ndim != direction.ndim or not direction.numel():
        return None
    along = [d for d in range(direction.ndim) if size.shape[d] == 1 and direction.shape[d] != 1]
    if any(s not in (1, v) for s, v in zip(size.shape, direction.shape, strict=True)):
        return None
    norms = direction.double().square().sum(along, keepdim=True).sqrt() if along else direction.double().abs()
    return (size.double() * direction.double() / norms.clamp_min(1e-30)).to(direction.dtype)


def _spectral(weight: Tensor | None, left: Tensor | None, right: Tensor | None) -> Tensor | None:
    """``W / (uᵀ W v)``; None: vectors that do not fit."""
    if weight is None or left is None or right is None or weight.ndim < 2:
        return None
    matrix = weight.double().flatten(1)
    if left.shape != matrix.shape[:1] or right.shape != matrix.shape[1:]:
        return None
    sigma = left.double() @ matrix @ right.double()
    return (weight.double() / sigma).to(weight.dtype) if float(sigma.abs()) > 0 else None


def zero_adapters(
    tensors: Mapping[str, Tensor], reference: Mapping[str, Tensor] | None = None
) -> tuple[str, ...]:
    """Names of adapters at their honest start: wholly zero, beside a partner of the same rank that is not.

    Not where they were something else in ``reference``, the last accepted model: training never leads back.
    """
    found = []
    for name in tensors:
        for pattern, other in _PAIRS:
            partner = tensors.get(pattern.sub(other, name)) if pattern.search(name) else None
            if partner is None or bool((t := tensors[name]).any()) or not _is_partner(t, partner):
                continue
            before = None if reference is None else reference.get(name)
            if before is None or not bool(before.any()):
                found.append(name)
    return tuple(found)


def _is_partner(zero: Tensor, other: Tensor) -> bool:
    """Whether two tensors of a low rank in common belong together, and the other one is drawn."""
    ranks = {zero.shape[0], *zero.shape[1:2]} & {other.shape[0], *other.shape[1:2]}
    return bool(ranks) and bool(other.isfinite().all()) and bool((other != 0).double().mean() > 1 / 2)
