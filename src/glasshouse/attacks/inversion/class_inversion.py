"""Gradient inversion of class representatives from FedAvg: one image per private class and client.

Source: Takahashi et al. 2023, "Breaching FedMD", CVPR, Appendix F (after Geiping et al. 2020);
step sizes and the stopping rule from the authors' code. Where we differ: classes are assigned to clients
jointly, each private class to one client, by the smallest total of the last layer's row minima; the paper
infers each client's classes separately. As in the paper, the number of classes per client is known.

Shape letters: B images of one client, one per class, C channels, H and W pixels, K clients, L classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, final

import numpy as np
import scipy
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.attacks.base import About, Claim, ClassRepresentatives, Needs
from glasshouse.attacks.budget import Budget
from glasshouse.attacks.objective import SearchedLoss, record_loss
from glasshouse.attacks.parts.local_steps import LINEAR, PICTURES
from glasshouse.attacks.parts.matching.distance import ROUNDING
from glasshouse.attacks.parts.replica import rebuild
from glasshouse.attacks.parts.search.adam import Descent
from glasshouse.attacks.parts.search.rows import LOOKS
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.images import total_variation
from glasshouse.limits import NotNegative, check_ranges
from glasshouse.progress import track
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.tensors import device_of
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Update

EASY: Mapping[str, Any] = {
    "data": {"domains": {"targets": 8, "per_class": 40, "shifts": ["lower_half_mask"]}},
    "model": {"name": "shallow_cnn"},
    "federation": {
        "protocol": "fedavg",
        "clients": 4,
        "rounds": 1,
        "batch_size": 16,
        "learning_rate": 1e-2,
        "keep": {"rounds": "all"},
    },
}


@final
@dataclass(frozen=True, kw_only=True)
class ClassInversion:
    """Treat a client's whole update as one gradient of one image per class, and match its direction.

    Args:
        search: by Adam on pixels in [-1, 1], in every round; each round starts from the previous result, so
            there are no restarts. Patience applies at any learning rate.
        smoothness: weight of the total variation.
    """

    card: ClassVar[Card] = Card(
        title="Class inversion",
        summary="class representatives from FedAvg updates, by matching the gradient's direction",
        source="Takahashi et al. 2023, Breaching FedMD, CVPR, Appendix F",
        claims=("class_representatives",),
        threat="server, sees single updates",
        control={
            "setting": "eight digits private, four clients with two each, FedAvg, one round: whose they are",
            "scenario": EASY,
            "metric": "owner",
        },
        offers=(Offer(strength=0.2, seconds=5),),
    )
    needs: ClassVar[Needs] = Needs(
        modalities=PICTURES,
        sees=frozenset({"broadcast", "update"}),
        scope="run",
        optimizers=LINEAR - {"weight_decay"},
        protocols=frozenset({"fedavg"}),
        targets=True,
    )

    search: Descent = field(
        default_factory=partial(Descent, iterations=150, restarts=1, learning_rate=0.3, schedule="constant")
    )
    smoothness: NotNegative = 0.01

    def __post_init__(self) -> None:
        check_ranges(self, "attack 'class_inversion'")
        if self.search.restarts != 1:
            raise BadValue(
                "attack 'class_inversion'",
                needs="search.restarts = 1: each round begins at the images of the one before",
                got=f"search.restarts = {self.search.restarts}",
                fix="leave it out",
            )

    @property
    def budget(self) -> Budget:
        """Iterations per round and client."""
        return Budget(unit="iterations", amount=self.search.iterations)

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """One claim per round with updates; the images of a round start from those of the previous one.

        Raises:
            Inapplicable: the protocol does not say which classes are private, or nothing was uploaded.
        """
        rounds = [r for r in view.rounds if r.updates]
        if not view.terms.targets or not rounds:
            raise Inapplicable(
                "attack 'class_inversion'",
                needs="private classes that the protocol names, and updates",
                got=f"{view.terms.targets} classes, {len(rounds)} rounds with updates",
                fix='set data.domains, and federation.keep.rounds = "all"',
            )
        owners = classes_of_clients(rounds[0], view.terms.targets)
        shape = view.terms.architecture.input_shape
        device = device_of(rounds[0].broadcast.tensors)
        images = torch.randn(len(owners), *shape, generator=rng.child("start").torch()).to(device)
        claims, labels = [], torch.arange(len(owners))
        for i, one in enumerate(track(rounds, "class inversion", total=len(rounds))):
            for client, update in one.updates.items():
                # A class is matched against its owner's update alone, from where the last round ended.
                own = (owners == client).nonzero().squeeze(1)
                if len(own):
                    model, noise = _received(one, client), rng.child(f"noise/{one.round}/{client}").torch()
                    images[own] = self._match(model, update, images[own], own.to(device), noise)
            about = About(rounds=tuple(r.round for r in rounds[: i + 1]))
            inputs = ((images.clamp(-1, 1) + 1) / 2).clone()
            claims.append(ClassRepresentatives(about=about, inputs=inputs, labels=labels, source=owners))
        return tuple(claims)

    def objective(self, view: View, about: About, *, rng: Rng) -> SearchedLoss:
        """The mean mismatch over the clients that were assigned classes, in the last round of the claim."""
        del rng  # nothing is drawn
        rounds = [r for r in view.rounds if r.updates and r.round in about.rounds]
        owners = classes_of_clients(rounds[0], view.terms.targets)
        last = rounds[-1]
        clients = [c for c in sorted(last.updates) if bool((owners == c).any())]

        def loss(pixels: Tensor, labels: Tensor) -> Tensor:
            values = []
            for images, classes in zip(2 * pixels - 1, labels, strict=True):
                each = []
                for client in clients:
                    own = torch.isin(classes, (owners == client).nonzero().squeeze(1).to(classes.device))
                    model, update = _received(last, client), last.updates[client]
                    each.append(self._mismatch(model, update, images[own], classes[own]).detach())
                values.append(torch.stack(each).mean())
            return torch.stack(values)

        return SearchedLoss(loss=loss, noise=ROUNDING)

    def _mismatch(self, model: nn.Module, update: Update, x: Tensor, labels: Tensor) -> Tensor:
        """The loss of images (B, C, H, W) in [-1, 1]."""
        parameters = {n: p for n, p in model.named_parameters() if n in update.tensors}
        target = -torch.cat([update.tensors[n].flatten() for n in parameters])
        loss = F.cross_entropy(model((x + 1) / 2), labels)
        gradients = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
        gradient = torch.cat([g.flatten() for g in gradients])
        return 1 - F.cosine_similarity(gradient, target, dim=0) + self.smoothness * total_variation(x).mean()

    def _match(
        self, model: nn.Module, update: Update, start: Tensor, labels: Tensor, noise: torch.Generator
    ) -> Tensor:
        """Images (B, C, H, W) in [-1, 1] whose gradient is opposite to the update; the last iterate."""
        x = start.clone().requires_grad_()
        optimizer = torch.optim.Adam([x], lr=self.search.learning_rate)
        best = next(iter(update.tensors.values())).new_full((), torch.inf)
        since = torch.zeros_like(best)
        for i in range(self.search.iterations):
            value = self._mismatch(model, update, x, labels)
            record_loss(i, value)
            (slope,) = torch.autograd.grad(value, x)
            self.search.step(optimizer, slope, iteration=i, noise=[noise])
            with torch.no_grad():
                x.clamp_(-1, 1)
                since = torch.where(value < best, 0.0, since + 1)
                best = torch.minimum(best, value.detach())
            if i % LOOKS == 0 and bool(since >= self.search.patience):
                break
        return x.detach()


def _received(one: RoundView, client: int) -> nn.Module:
    """The model that the client trained on."""
    return rebuild(one.received_by(client)).requires_grad_()


def classes_of_clients(one: RoundView, targets: int) -> Tensor:
    """For each private class the client that most likely holds it, (L,).

    If a client trained on a class, the gradient of the class's row of the last layer is negative somewhere.
    Every client gets at most L / K classes, rounded up.
    """
    clients = sorted(one.updates)
    weights = [[t for t in one.updates[c].tensors.values() if t.ndim == 2][-1] for c in clients]
    # Smallest entry of each private class's row of the last layer's gradient, in units of the largest.
    minima = [(-w[:targets]).amin(1) / w.abs().max().clamp_min(1e-30) for w in weights]
    lowest = torch.stack(minima).cpu().numpy()  # (K, L)
    room = -(-targets // len(clients))
    rows, columns = scipy.optimize.linear_sum_assignment(np.repeat(lowest, room, axis=0))
    owners = torch.zeros(targets, dtype=torch.int64)
    for row, column in zip(rows, columns, strict=True):
        owners[int(column)] = clients[int(row) // room]
    return owners
