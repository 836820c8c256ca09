"""Which of a client's examples would be exposed in a secure sum, checked before the update is sent.

Under secure aggregation the server sees the sum of all updates. A client knows only its own, so the other
clients are simulated: further examples are split among simulated clients, each with as many examples as the
client, and their updates are computed and added. Preflight then checks the sum, using the contribution of
each example of every client, and counts the client's own. An example that is also found in the sum of the
others does not count: it resembles one of theirs. Fixed combinations of rows are pursued in the update alone.

The result shows what a sum hides if the others received the same model, hold similar examples and take part.
A server can violate each assumption: send different models, invent clients, or leave others out. In the worst
case the sum is the update alone, if the others send nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import torch
from torch import Tensor, nn

from glasshouse.errors import BadValue
from glasshouse.guard.layers.contributions import Contributions
from glasshouse.guard.layers.standing import Leak
from glasshouse.guard.preflight import Examples, Preflight
from glasshouse.guard.pursuit.examples import Own
from glasshouse.guard.remedies import Train, distance, gradient_of
from glasshouse.guard.watch import Watched, watch
from glasshouse.wire import Kind

__all__ = ["SumPreflight", "preflight_in_sum"]

SAME: Final = 0.05
"""Relative difference allowed between the gradient that is sent and the one computed here."""


@final
@dataclass(frozen=True, kw_only=True)
class SumPreflight:
    """What is exposed in a secure sum.

    Attributes:
        clients: number of clients in the sum, this one included.
        alone: what is exposed in the update alone: the sum if the others send nothing.
        leaks: the clearest leak for each of the client's own exposed examples and kind, if the others send as
            much.
        controlled: the control passed: in an update of a single example, that one was found and no other.
    """

    clients: int
    alone: Preflight
    leaks: tuple[Leak, ...]
    controlled: bool

    @property
    def standing(self) -> tuple[int, ...]:
        """Indices of the client's examples whose inputs, or features, are exposed in the sum."""
        return tuple(dict.fromkeys(leak.example for leak in self.leaks))

    @property
    def summary(self) -> str:
        """One sentence."""
        if not (self.controlled and self.alone.controlled):
            return "Nothing can be said: an update of one of your examples did not show it, or showed others."
        alone = len({leak.example for leak in self.alone.leaks})
        others = self.clients - 1
        return (
            f"Of your {self.alone.examples} examples {alone or 'none'} would stand in the sum if the others "
            f"sent nothing, and {len(self.standing) or 'none'} in a sum with {others} "
            f"{'client' if others == 1 else 'clients'} like you."
        )


def preflight_in_sum(
    update: Mapping[str, Tensor],
    model: nn.Module,
    batch: tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Watched],
    others: tuple[Tensor, Tensor],
    *,
    clients: int,
    kind: Kind = "delta",
    train: Train | None = None,
) -> SumPreflight:
    """Look for a client's examples in the sum that a server would see under secure aggregation.

    Args:
        update: of the client, as in :func:`~glasshouse.guard.preflight.preflight`.
        model: as received, in the mode in which it is trained; not modified.
        batch: all examples behind the update, (B, ...), their classes, (B,), and, if it was recorded, the
            training.
        others: examples similar to the other clients' and their classes: own ones not used for this update,
            or public ones; at least ``clients - 1`` times B. They are assigned in order.
        clients: number of clients in the sum, this one included; at least 2.
        kind: ``gradient`` or ``delta``.
        train: computes the update of other examples as this client computed its own, defences included; has
            a default for an undefended gradient.

    Raises:
        BadValue: fewer than 2 clients, too few other examples, some that were used for this update, no
            ``train`` where it is needed, or as :func:`~glasshouse.guard.preflight.preflight`.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> images, labels = torch.rand(20, 1, 4, 4), torch.arange(20) % 2
        >>> mine, others = (images[:2], labels[:2]), (images[2:], labels[2:])
        >>> gradient = gradient_of(model, *mine)
        >>> preflight_in_sum(gradient, model, mine, others, clients=10, kind="gradient").summary
        'Of your 2 examples 2 would stand in the sum if the others sent nothing, and none in a sum with 9 ...'
    """
    inputs, labels, watched = batch if len(batch) == 3 else (*batch, None)
    _check_cohort(inputs, others[0], clients)
    train = _training(update, model, (inputs, labels), kind=kind, train=train)
    own = Examples.behind(update, model, Own(inputs=inputs, targets=labels), kind=kind, watched=watched)
    # The server's sum is not known here: others' updates are made as this client makes its own.
    parts, updates = [own], [update]
    batches = zip(*(torch.split(t, len(labels)) for t in others), strict=True)
    for (some, classes), _ in zip(batches, range(clients - 1), strict=False):
        with watch() as seen:
            sent = {name: t.detach() for name, t in train(some, classes).items() if name in update}
        parts.append(Examples.behind(sent, model, Own(inputs=some, targets=classes), kind=kind, watched=seen))
        updates.append(sent)
    everyone = _join(parts, updates)
    in_sum = everyone.find_in(_add(updates))
    # What stands in the sum without this update is not its doing.
    anyway = {(leak.example, leak.what) for leak in everyone.find_in(_add(updates[1:])).leaks}
    own_leaks = (leak for leak in in_sum.leaks if leak.example < len(labels))
    return SumPreflight(
        clients=clients,
        alone=own.find_in(update),
        leaks=tuple(leak for leak in own_leaks if (leak.example, leak.what) not in anyway),
        controlled=in_sum.controlled,
    )


def _add(updates: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The sum of updates."""
    return {name: torch.stack([one[name].double() for one in updates]).sum(0) for name in updates[0]}


def _check_cohort(inputs: Tensor, others: Tensor, clients: int) -> None:
    """Raise unless there are other clients, with enough examples that are not this client's."""
    if clients < 2:
        raise BadValue(
            "preflight in a sum",
            needs="at least 2 clients in the sum",
            got=f"{clients}",
            fix="look at an update that is sent by itself with preflight",
        )
    each = len(inputs)
    possible = 1 + len(others) // max(1, each)
    if possible < clients:
        more = "give more examples, public ones for instance"
        raise BadValue(
            "preflight in a sum",
            needs=f"{(clients - 1) * each} examples of others: {each}, as many as behind this update, for "
            f"each of {clients - 1} other clients",
            got=f"{len(others)}",
            fix=more if possible < 2 else f"{more}, or ask for clients={possible}",
        )
    # An own example among the others' would count as theirs, and what shows it as no leak.
    known = {t.numpy().tobytes() for t in inputs.detach().cpu()}
    shared = sum(t.numpy().tobytes() in known for t in others.detach().cpu())
    if shared:
        raise BadValue(
            "preflight in a sum",
            needs="examples of others, none of which is behind this update",
            got=f"{shared} that are behind this update",
            fix="leave them out",
        )


def _training(
    update: Mapping[str, Tensor],
    model: nn.Module,
    batch: tuple[Tensor, Tensor],
    *,
    kind: Kind,
    train: Train | None,
) -> Train:
    """The function that computes the others' updates in the same way as this client's."""
    if train is not None:
        return train
    sent = "a change of the parameters"
    if kind == "gradient":
        recomputed = {name: t for name, t in gradient_of(model, *batch).items() if name in update}
        sent = f"a gradient that differs from the plain one by {distance(update, recomputed):.0%}"
        if recomputed.keys() == update.keys() and distance(update, recomputed) <= SAME:
            return lambda inputs, labels: gradient_of(model, inputs, labels)
    raise BadValue(
        "preflight in a sum",
        needs="a plain gradient, or train=, which makes the update of other examples",
        got=sent,
        fix="give train=, with the local steps and defences that made this update",
    )


def _join(parts: Sequence[Examples], updates: Sequence[Mapping[str, Tensor]]) -> Examples:
    """The examples of all clients, and their contributions to the sum of the updates."""
    own = parts[0]
    if own.sentences is not None:
        tokens = torch.cat([one.sentences[1] for one in parts if one.sentences is not None])
        return replace(
            own, labels=torch.cat([one.labels for one in parts]), sentences=(own.sentences[0], tokens)
        )
    by_name: dict[str, list[Contributions]] = {}
    for one in parts:
        for name, layer in {layer.trace.name: layer for layer in one.layers}.items():
            by_name.setdefault(name, []).append(layer)
    # Of the layers that travel, those to which the examples of all clients are known to contribute.
    whole = [
        layers
        for name, layers in by_name.items()
        if f"{name}.weight".removeprefix(".") in updates[0] and len(layers) == len(parts)
    ]
    return replace(
        own,
        labels=torch.cat([one.labels for one in parts]),
        layers=tuple(_join_layer(layers, updates) for layers in whole),
        pursued=None,
        controlled=all(one.controlled for one in parts),
    )


def _join_layer(
    contributions: Sequence[Contributions], updates: Sequence[Mapping[str, Tensor]]
) -> Contributions:
    """The contributions of every client's examples to one layer, in the units of the updates.

    The output gradients have different scales for clients whose training was recorded, clipped or used
    another step size; so each client's are rescaled to its own update, row by row, before they are joined.
    """
    own, pulls = contributions[0], []
    for one, update in zip(contributions, updates, strict=True):
        rows = update[one.trace.named("weight")].detach().to(one.trace.inputs)
        pulls.append(one.sizes(rows).per_length(one.lengths * one.unit).signed.T)
    inputs = torch.cat([one.trace.inputs * one.unit for one in contributions])
    return Contributions.of(
        replace(own.trace, inputs=inputs, pulls=torch.cat(pulls)),
        own.what,
        is_exact=all(one.is_exact for one in contributions),
    )
