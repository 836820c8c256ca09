"""Maui: recover images of clients that only fine-tune a head, with crafted features and a crafted head.

Source: Dabholkar, Sharma, Celik & Bagchi 2025, "Maui: Reconstructing Private Client Data in Federated
Transfer Learning". The server broadcasts adversarially trained features (the scenario's own pre-training:
``model.pretraining.adversarial``) and, in the attacked rounds, a head whose units are active for few examples
(:mod:`head`). The head's update gives the features of every example that is alone in some unit; each is
inverted by matching (``parts.search.features``). Neither the architecture nor any single weight is
conspicuous.

Where we differ: see :mod:`head` for the crafting, ``parts.readout.columns`` for the blind read-out; the head
is crafted from the granted auxiliary images, on none of which the features were trained.

Breaks when: the features are not robust (images are then poor, the representations still leak), the batch is
far larger than the number of units, or noise exceeds one example's contribution to a unit.
"""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import torch

from glasshouse.attacks.base import About, Appendix, Claim, Needs
from glasshouse.attacks.budget import Budget
from glasshouse.attacks.parts.readout.columns import Readout
from glasshouse.attacks.parts.readout.head_gradient import (
    HeadAttack,
    Inversion,
)
from glasshouse.attacks.parts.readout.linear_tail import TWO_LAYERS, FrozenFeatures, freeze_features
from glasshouse.attacks.parts.readout.summed import crafting_needs
from glasshouse.attacks.parts.replica import complete_broadcast
from glasshouse.attacks.transfer.maui import tune
from glasshouse.attacks.transfer.maui.head import CraftedHead, HeadSettings, craft_head
from glasshouse.attacks.transfer.maui.leakage import Sample
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.limits import Natural, check_ranges
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.tensors import map_tensors, with_prefix
from glasshouse.transcript.view import View
from glasshouse.wire import Broadcast, Crafted


@final
@dataclass(frozen=True, kw_only=True)
class Maui(HeadAttack):
    """The attack and its settings.

    Args:
        head: how the head is crafted.
        trials: of the TPE search for the head's ``rate``, ``beta1``, ``beta2`` and ``noise`` (unless 0);
            0: no search. Only for modes that train. Needs the extra ``tuning``.
        readout: the candidates to keep; see :data:`glasshouse.attacks.parts.readout.columns.Readout`.
        inversion: of representations to images.
    """

    name: ClassVar[str] = "maui"
    card: ClassVar[Card] = Card(
        title="Maui",
        summary="robust features and a head of sparse activations: representations, and images of them",
        source="Dabholkar et al. 2025 (Maui)",
        claims=("reconstruction", "representations"),
        threat="malicious server: pre-trains the features, sets the head, keeps the architecture",
        grants=("auxiliary",),
        details={"structure": "unchanged", "attribution": "by client where updates are seen one by one"},
        control={
            "setting": "6 clients with 2 digits each, untrained features, no defence",
            "scenario": {
                "data": {"examples": 2, "auxiliary": 400},
                "model": {"name": "maui_cnn", "width": 16, "hidden": 64, "poolings": 0},
                "federation": {"protocol": "transfer", "batch_size": 2},
                "threat": {"changes": ["parameters"]},
            },
            "metric": "leakage",
        },
        offers=(
            Offer(
                strength=0.5,
                settings={
                    "head": {"epochs": 6, "batches": 40, "output_epochs": 5},
                    "inversion": {"iterations": 150, "distance": {"tv": 0.05}, "step": 0.2},
                },
                seconds=5,
            ),
        ),
    )
    needs: ClassVar[Needs] = replace(crafting_needs("parameters"), protocols=frozenset({"transfer"}))

    head: HeadSettings = field(default_factory=HeadSettings)
    trials: Natural = 0
    readout: Readout = "unexplained"
    inversion: Inversion = field(default_factory=Inversion)

    def __post_init__(self) -> None:
        check_ranges(self, "attack 'maui'")
        if self.trials and "trained" not in self.head.mode:
            raise BadValue(
                "attack 'maui'",
                needs="trials = 0 in a mode that does not train the head",
                got=f"trials = {self.trials}, mode = {self.head.mode}",
                fix='set trials = 0, or mode = "trained+quantile"',
            )

    @property
    def budget(self) -> Budget:
        """Steps of the inversion, and of the head's training, which is done once for all rounds."""
        if "trained" not in self.head.mode:
            return self.inversion.budget
        return replace(
            self.inversion.budget,
            training=self.head.epochs * self.head.batches,
            trained="the head",
        )

    def craft(self, view: View, *, rng: Rng) -> Crafted | None:
        """The agreed model with its features, and a head that leaks.

        Raises:
            Inapplicable: the head is not two linear layers, or the number of examples behind an update is
                unknown.
        """
        del rng  # one head for all rounds: it depends only on the features and the auxiliary images
        auxiliary = view.grants.auxiliary
        assert auxiliary is not None  # needs.grants
        model = freeze_features(view.terms.architecture, complete_broadcast(view), subject="attack 'maui'")
        # features are computed on the device; a head is small, and its training no faster there
        sample = Sample(features=model.of(auxiliary.inputs).cpu(), labels=auxiliary.labels.cpu())
        crafted = self._craft_head(sample, model, view)
        number = view.rounds[-1].round
        first, second = model.tail.names
        head = with_prefix(f"{first}.", crafted.head.hidden.state_dict())
        head |= with_prefix(f"{second}.", crafted.head.out.state_dict())
        tensors = {**model.tensors, **map_tensors(head, lambda t: t.detach().clone())}
        return Crafted(
            default=Broadcast(round=number, architecture=view.terms.architecture, tensors=tensors),
            memory={
                f"leakage.{number}": crafted.leakage,
                f"accuracy.{number}": crafted.accuracy,
                f"best.{number}": torch.tensor(crafted.best),
            },
        )

    def _craft_head(self, sample: Sample, model: FrozenFeatures, view: View) -> CraftedHead:
        if len(model.tail.names) != 2:
            raise Inapplicable(
                "attack 'maui'",
                needs="a head of two linear layers, with frozen features before it",
                got=f"{len(model.tail.names)} linear layers at the end: {', '.join(model.tail.names)}",
                fix=TWO_LAYERS,
            )
        shares, behind = self.head.shares, examples_behind(view)
        if behind is None and shares:  # the number that they imply
            behind = max(1, round(1 / math.sqrt(min(shares) * max(shares))))
        if behind is None:
            raise Inapplicable(
                "attack 'maui'",
                needs="the number of examples behind an update, to fit the head to",
                got=f"clients send '{view.terms.sends}' of all their data, and no earlier round was seen",
                fix="set the attack's head.shares to [1 / that number] or to two ends of a ladder, or attack "
                'a later round (audit.rounds) with federation.keep.rounds = "all"',
            )
        root, settings = Rng.root(0).child("maui/head"), self.head
        sizes = {"units": model.tail.widths[0], "classes": model.tail.widths[1], "behind": behind}
        if self.trials:
            settings = tune.search_recipe(sample, **sizes, settings=settings, trials=self.trials, rng=root)
        return craft_head(sample, **sizes, settings=settings, rng=root)

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """Representations and images, and the curves of the head's training.

        Raises:
            Inapplicable: neither updates nor a sum are seen.
        """
        claims: list[Claim] = []
        for one in view.rounds:
            if f"leakage.{one.round}" not in view.memory:
                continue
            about, numbers = About(rounds=(one.round,)), {"best": int(view.memory[f"best.{one.round}"])}
            tensors = {name: view.memory[f"{name}.{one.round}"] for name in ("leakage", "accuracy")}
            claims.append(Appendix(about=about, name="head", tensors=tensors, numbers=numbers))
            claims += self.recover_claims(one, terms=view.terms, rng=rng)
        return tuple(claims)


def examples_behind(view: View) -> int | None:
    """Expected examples behind one client's upload or, under ``secure_sum``, behind the sum.

    A gradient is of one batch, whose size is public. A change of parameters is from all of a client's
    examples, whose number comes with every upload: the mean over earlier rounds. None: no earlier round.
    """
    terms = view.terms
    together = terms.cohort if terms.secure_sum else 1
    if terms.sends == "gradient":
        return terms.batch_size * together
    sizes = [float(u.examples) for one in view.rounds for u in one.updates.values()]
    for total in (one.aggregate for one in view.rounds if one.aggregate is not None):
        answered = len(total.selected) - len(total.dropped)
        sizes += [total.examples / max(answered, 1)] * answered
    return max(1, round(together * sum(sizes) / len(sizes))) if sizes else None
