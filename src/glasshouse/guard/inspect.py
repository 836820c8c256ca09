"""Inspection of one model by all rules, with the underlying numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.guard.dense import dense
from glasshouse.guard.forms import effective, zero_adapters
from glasshouse.guard.pursuit.inspect import Judged, Verdict
from glasshouse.guard.rules.entropy import low_entropy
from glasshouse.guard.rules.finite import not_finite
from glasshouse.guard.rules.kernels import odd_kernels
from glasshouse.guard.rules.rows import identical_rows
from glasshouse.guard.rules.structure import check_related, other_structure
from glasshouse.guard.vectors import Vectors, not_looked_at, vectors_of
from glasshouse.tensors import derive, outlined
from glasshouse.wire import Inspection

NAME = "glasshouse guard"


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """One inspected model.

    Attributes:
        vectors: its measured weight vectors.
        apart: names of the weights, biases and other floating tensors that are in no vector: these are only
            checked for being finite.
        fits: its tensors match the agreed architecture; True if none was given.
        inspection: findings, and ``minimum``, ``percentile_3`` and ``median`` of the entropies (absent if no
            vector was measured); ``vectors`` and ``skipped`` count the measured vectors and those too small
            to measure, ``apart`` the tensors in no vector.
        resting: names of adapters that are zero as their method starts them (``lora_B`` beside ``lora_A``).
        form: how the received names differed from the agreed ones, in words; empty: they did not.
        judged: what fixed read-outs get of the client's examples; None: it was not tried on any.
    """

    vectors: tuple[Vectors, ...]
    apart: tuple[str, ...]
    fits: bool
    inspection: Inspection
    resting: tuple[str, ...] = ()
    form: str = ""
    judged: Judged | None = None

    @property
    def verdict(self) -> Verdict:
        """``refused`` with a finding; ``passed`` only if it could be judged, by weights or on examples."""
        if self.findings:
            return "refused"
        if self.judged is not None:
            return self.judged.verdict
        return "passed" if self.vectors or self.resting else "not judged"

    @property
    def findings(self) -> tuple[str, ...]:
        """One sentence for each reason not to train on the model; empty: nothing was found."""
        return self.inspection.findings

    @property
    def entropies(self) -> NDArray[np.float64]:
        """Entropies of all vectors, in order; empty if none was measured."""
        values: NDArray[np.float64] = np.concatenate([np.empty(0), *(v.entropies for v in self.vectors)])
        return values


def inspect(
    tensors: Mapping[str, Tensor],
    *,
    agreed: Mapping[str, Tensor] | None = None,
    reference: Mapping[str, Tensor] | None = None,
) -> Seen:
    """Inspect a model as a client received it.

    Args:
        tensors: its state_dict.
        agreed: the state_dict (any values) of the agreed architecture.
        reference: the state_dict of an honest model of that architecture: oddities that it makes likely are
            not reported. Without ``agreed``, its structure is the agreed one.

    Raises:
        BadValue: nothing is agreed and no weight of a convolution or linear layer is among ``tensors``, a
            tensor cannot be read, or the reference is of another architecture.

    Examples:
        >>> seen = inspect({"fc.weight": torch.ones(8, 16)})
        >>> seen.inspection.values["minimum"], len(seen.inspection.findings)
        (0.0, 3)
    """
    read = effective(dense(tensors))
    # Adapters that start at zero are no oddity; whoever judges the others does not see them.
    resting = zero_adapters(read, None if reference is None else dense(reference))
    vectors = vectors_of(derive(read, lambda _, t: t, keep=lambda name: name not in resting))
    if agreed is None and not resting and not any(v.count for v in vectors if v.kind != "bias"):
        raise BadValue(
            "inspection of a model",
            needs="weights of convolutions or linear layers ('*.weight' with 2 or more dimensions)",
            got=", ".join(list(tensors)[:4]) or "nothing",
            fix="give the model's state_dict",
        )
    if reference is not None:
        check_related(outlined(reference), outlined(tensors) if agreed is None else agreed)
        agreed = reference if agreed is None else agreed
    honest = vectors_of(effective(dense(reference))) if reference is not None else ()
    structure = other_structure(outlined(tensors), agreed) if agreed is not None else []
    findings = [
        *structure,
        *not_finite(read),
        *odd_kernels(vectors, honest),
        *identical_rows(vectors, honest),
        *low_entropy(vectors, honest),
    ]
    apart = not_looked_at(read)
    values = {**_entropies(vectors), "apart": float(len(apart))}
    return Seen(
        vectors=tuple(v for v in vectors if len(v.entropies)),
        apart=apart,
        fits=not structure,
        inspection=Inspection(guard=NAME, findings=tuple(findings), values=values),
        resting=resting,
    )


def _entropies(vectors: Sequence[Vectors]) -> dict[str, float]:
    """Numbers of measured and skipped vectors, and a summary of the entropies."""
    every = torch.cat([torch.empty(0), *(v.entropies for v in vectors)]).numpy()
    counts = {
        "vectors": float(len(every)),
        "skipped": float(sum(v.count for v in vectors if not len(v.entropies))),
    }
    if not len(every):
        return counts
    low, middle = np.percentile(every, [3, 50])
    return {
        **counts,
        "minimum": float(every.min()),
        "percentile_3": float(low),
        "median": float(middle),
    }
