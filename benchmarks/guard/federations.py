"""Federations of guarded clients, in which the server may occasionally send a crafted model to one client.

All clients train one local epoch of SGD per round on the received model; the server adds the mean update to
its model. Updates are sent unchanged, or mitigated first and omitted if no mitigation suffices. In an
attacked federation one client receives a crafted model in every ``EVERY``-th round: with an imprint module of
Robbing the Fed or LOKI in front, trap weights in the first linear layer, or a last layer that fishes for one
class. It answers like any other client, and the part of its update for the agreed network's tensors enters
the mean.
"""

import argparse
import copy
import time
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.guard.networks import NETWORKS
from benchmarks.guard.truth import known
from glasshouse.attacks.base import ActiveAttack
from glasshouse.attacks.linear.cah import find_scale, trap_rows
from glasshouse.attacks.linear.loki import Loki
from glasshouse.attacks.linear.robbing_the_fed import RobbingTheFed
from glasshouse.data.sources import load
from glasshouse.errors import BadValue
from glasshouse.guard.mitigate import mitigate
from glasshouse.guard.pursuit.fresh import initialise_again
from glasshouse.guard.watch import watch
from glasshouse.models import build as models
from glasshouse.rng import Rng
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Batch, Broadcast, Terms

CLIENTS, LOCAL, RATE = 10, 32, 0.05
EVERY: Final = 4
"""The last of every ``EVERY`` rounds is attacked."""
BINS: Final = 128
FISHED, CERTAIN = 3, 10.0
"""The targeted class of class fishing, and the bias of all others."""
FIRES: Final = 3 / LOCAL
"""Share of the server's images for which a row of trap weights fires."""
KINDS = ("Robbing the Fed", "LOKI", "trap weights", "class fishing")
"""Attacked rounds cycle through these attacks."""
IN_FRONT: Final[dict[str, ActiveAttack]] = {
    "Robbing the Fed": RobbingTheFed(bins=BINS),
    "LOKI": Loki(width=2),
}
Change = dict[str, Tensor]


def local_epoch(model: nn.Module, images: Tensor, labels: Tensor, generator: torch.Generator) -> nn.Module:
    """A copy of ``model`` after one local epoch."""
    work = copy.deepcopy(model)
    optimizer = torch.optim.SGD(work.parameters(), lr=RATE)
    for rows in torch.randperm(len(images), generator=generator).split(LOCAL):
        optimizer.zero_grad()
        F.cross_entropy(work(images[rows]), labels[rows]).backward()
        optimizer.step()
    return work


def change_of(before: nn.Module, after: nn.Module) -> Change:
    """The change of the parameters."""
    start = dict(before.named_parameters())
    return {name: (p - start[name]).detach() for name, p in after.named_parameters()}


def crafted(kind: str, model: nn.Module, architecture: Architecture, *, seed: int, number: int) -> nn.Module:
    """The crafted model that one client receives instead of ``model`` (of the zoo's ``architecture``)."""
    rng = Rng.root(seed, salt="crafted").child(f"round/{number}")
    if kind in IN_FRONT:
        plain = Broadcast(round=number, architecture=architecture, tensors=models.state(model))
        terms = Terms(
            protocol="fedsgd",
            architecture=architecture,
            sends="gradient",
            clients=1,
            cohort=1,
            batch_size=LOCAL,
        )
        view = View(
            terms=terms,
            threat=Threat(),
            rounds=(RoundView(round=number, broadcast=plain),),
            grants=Grants(auxiliary=known()),
            memory={},
        )
        made = IN_FRONT[kind].craft(view, rng=rng)
        assert made is not None  # the structural attacks always craft
        sent = made.addressed.get(0, made.default)
        changed = models.build(sent.architecture)
        models.load(changed, sent.tensors)
        return changed.train()
    changed = copy.deepcopy(model)
    layers = [part for part in changed.modules() if isinstance(part, nn.Linear)]
    with torch.no_grad():
        if kind == "trap weights":
            first, entered = layers[0], []
            hook = first.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
            changed(known().inputs)
            hook.remove()
            scale = find_scale(entered[0], FIRES, rng=rng)
            first.weight.copy_(trap_rows(first.out_features, first.in_features, scale=scale, rng=rng))
            first.bias.zero_()
        else:
            others = torch.arange(layers[-1].out_features) != FISHED
            layers[-1].weight[others] = 0
            layers[-1].bias[:] = CERTAIN * others
    return changed


def agreed_part(change: Mapping[str, Tensor], model: nn.Module) -> Change:
    """The part of a crafted model's change that belongs to the agreed network, by its tensor names."""
    own = {name.replace("features.inner.", "features."): t for name, t in change.items()}
    return {name: own[name] for name, _ in model.named_parameters()}


class Federation:
    """One federation: its data, model, and counts of the actions on updates."""

    def __init__(self, network: str, chosen: argparse.Namespace, *, seed: int) -> None:
        splits = load(chosen.data).splits
        train = splits["train"]
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
        dealt = order[: CLIENTS * chosen.examples].split(chosen.examples)
        self.shards: list[Batch] = [train.batch(rows) for rows in dealt]
        self.test = splits["test"].batch(torch.arange(len(splits["test"])))
        shape, classes = tuple(self.shards[0].inputs.shape[1:]), int(self.test.labels.max()) + 1
        self.architecture = Architecture.of(network, shape, classes)
        self.model, _ = initialise_again(NETWORKS[network](shape, classes), seed=seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.seed, self.seconds = seed, 0.0
        self.remedies: dict[str, int] = {}
        self.attacked: list[dict[str, object]] = []

    def round(self, number: int, *, mitigated: bool, attacked: bool) -> float:
        """Run one round; return the accuracy after it."""
        victim, kind = None, ""
        if attacked and number % EVERY == EVERY - 1:
            turn = number // EVERY
            victim, kind = turn % CLIENTS, KINDS[turn % len(KINDS)]
        changes = []
        for client, shard in enumerate(self.shards):
            received = self.model
            if client == victim:
                received = crafted(kind, self.model, self.architecture, seed=self.seed, number=number)
            answer, done = self.answer(received, shard, mitigated=mitigated)
            if client == victim:
                self.attacked.append({"round": number, "kind": kind, "done": done})
            elif mitigated:
                self.remedies[done] = self.remedies.get(done, 0) + 1
            if answer is not None:
                changes.append(agreed_part(answer, self.model))
        with torch.no_grad():
            for name, p in self.model.named_parameters() if changes else ():
                p.add_((sum(one[name].double() for one in changes) / len(changes)).to(p.dtype))
            self.model.eval()
            right = self.model(self.test.inputs).argmax(1) == self.test.labels
            self.model.train()
        return float(right.double().mean())

    def answer(self, received: nn.Module, shard: Batch, *, mitigated: bool) -> tuple[Change | None, str]:
        """One client's update, and the action taken; None: nothing is sent, or it is not finite."""
        with watch() as seen:
            trained = local_epoch(received, shard.inputs, shard.labels, self.generator)
        change = change_of(received, trained)
        if not all(bool(t.isfinite().all()) for t in change.values()):
            return None, "not finite"
        if not mitigated:
            return change, "none"
        start = time.process_time()
        try:
            closed = mitigate(change, received, (shard.inputs, shard.labels, seen))
        except BadValue:
            return None, "not looked into"
        finally:
            self.seconds += time.process_time() - start
        if closed.update is None:
            return None, "not sent"
        return dict(closed.update), closed.remedy or "none"


def play(
    network: str, chosen: argparse.Namespace, *, seed: int, mitigated: bool, attacked: bool
) -> dict[str, object]:
    """Accuracy after each round, and counts of actions on updates, separately for attacked clients."""
    federation = Federation(network, chosen, seed=seed)
    accuracy = [
        federation.round(number, mitigated=mitigated, attacked=attacked) for number in range(chosen.rounds)
    ]
    return {
        "network": network,
        "seed": seed,
        "mitigated": mitigated,
        "attacks": attacked,
        "accuracy": accuracy,
        "remedies": federation.remedies,
        "crafted": federation.attacked,
        "mitigation, s": federation.seconds,
    }
