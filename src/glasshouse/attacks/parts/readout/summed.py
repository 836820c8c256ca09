"""Convert a round's sum to a gradient, whatever clients sent, and with or without secure aggregation.

Shape letters: N clients that answered, S local steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, final

from torch import Tensor

from glasshouse.attacks.base import About, Needs, Reconstruction
from glasshouse.attacks.parts.local_steps import LINEAR, PICTURES, check_linear, known_decay
from glasshouse.errors import Inapplicable
from glasshouse.tensors import map_tensors, weighted_sum
from glasshouse.transcript.threat import Changes
from glasshouse.transcript.view import RoundView
from glasshouse.wire import Terms

READING_NEEDS: Final = Needs(
    sees=frozenset({"broadcast"}),
    any_of=frozenset({"update", "aggregate"}),
    scope="round",
    optimizers=LINEAR,
)
"""Needs of an attack that reads a round's updates or, if they are hidden, their sum."""


def crafting_needs(*changes: Changes, modalities: frozenset[str] = PICTURES) -> Needs:
    """Needs of an attack that crafts the broadcast from auxiliary examples, and reads the sum of updates."""
    return replace(
        READING_NEEDS,
        changes=frozenset(changes),
        grants=frozenset({"auxiliary"}),
        modalities=modalities,
        continuous=not modalities,
    )


def crafting_control(
    *changes: Changes,
    batch: int = 4,
    rounds: int = 4,
    auxiliary: int = 400,
    examples: int = 150,
    **tables: Any,
) -> dict[str, Any]:
    """Control of such an attack: secure sums of 2 clients' digits; ``tables`` are added to the scenario."""
    digits = f"{batch} digits" if batch > 1 else "1 digit"
    return {
        "setting": f"2 clients with {digits} each, {rounds} rounds, no defence",
        "scenario": {
            "data": {"auxiliary": auxiliary, "examples": examples},
            "federation": {"clients": 2, "batch_size": batch, "rounds": rounds, "secure_sum": True},
            "audit": {"rounds": list(range(rounds))},
            "threat": {"changes": list(changes)},
            **tables,
        },
        "metric": "rate_blind",
    }


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RoundSum:
    """A round as one gradient.

    Attributes:
        gradient: by parameter name, float64: sum over S local steps of the clients' weighted mean gradients.
        examples: behind it.
        steps: S.
        unit: weight of one example's loss gradient in it.
    """

    gradient: Mapping[str, Tensor]
    examples: int
    steps: int

    @property
    def unit(self) -> float:
        """Steps / examples: every example is used in a share of the steps, with weight 1 / batch size."""
        return self.steps / self.examples


def sum_of_round(view: RoundView, *, terms: Terms, names: tuple[str, ...], subject: str) -> RoundSum:
    """The tensors ``names`` of a round's sum, as a gradient.

    A change of parameters is first corrected for weight decay, then divided by minus the learning rate.
    Clients are assumed to hold equally many examples.

    Raises:
        Inapplicable: neither a sum nor updates are seen, a name is missing from it, or clients use Adam.
    """
    if view.aggregate is not None:
        total: Mapping[str, Tensor] = view.aggregate.tensors
        kind, weight = view.aggregate.kind, view.aggregate.weight
        examples, steps = view.aggregate.examples, view.aggregate.steps
    # Without a secure sum the adversary adds up itself, with the weights of the terms.
    elif view.updates:
        updates = list(view.updates.values())
        by_size = terms.weighting == "size"
        weights = [float(u.examples) if by_size else 1.0 for u in updates]
        total = weighted_sum([(w, u.tensors) for w, u in zip(weights, updates, strict=True)])
        kind, weight = updates[0].kind, sum(weights)
        examples, steps = sum(u.examples for u in updates), updates[0].steps
    else:
        raise Inapplicable(
            subject,
            needs="the sum of a round, or its updates",
            got=f"round {view.round}: neither",
            fix='let the adversary see them (threat.role = "server"); under [guard] all may have refused',
        )
    if missing := [name for name in names if name not in total]:
        raise Inapplicable(
            subject,
            needs=f"'{missing[0]}' in what clients send",
            got=", ".join(sorted(total)) or "nothing",
            fix="let clients train all layers (this protocol trains a part)",
        )
    # From the sum to a mean gradient: what clients send, less decay, over minus the rate.
    gradient = {name: total[name].double() / weight for name in names}
    if kind != "gradient":
        check_linear(terms, subject=subject)
        if kind != "delta":
            raise Inapplicable(
                subject,
                needs="gradients or parameters on the wire",
                got=f"'{kind}'",
                fix="use protocol fedsgd or fedavg",
            )
        decayed = names if terms.optimizer.weight_decay else ()
        before = {name: view.broadcast.tensors[name].double() for name in decayed}
        decay = known_decay(before, terms, round=view.round, steps=steps)
        gradient = {name: t + decay[name] if decay else t for name, t in gradient.items()}
        gradient = map_tensors(gradient, lambda t: -t / terms.rate(view.round))
    return RoundSum(gradient=gradient, examples=examples, steps=steps)


def claim_of_round(
    one: RoundView, inputs: Tensor, *, terms: Terms, confidence: Tensor, source: Tensor | None = None
) -> Reconstruction:
    """The claim that ``inputs`` (L, D) were behind a round's sum: the nearest valid examples."""
    described = terms.architecture.inputs
    examples = described.project(inputs.reshape(-1, *described.shape)).float()
    about = About(rounds=(one.round,))
    return Reconstruction(about=about, inputs=examples, labels=None, confidence=confidence, source=source)
