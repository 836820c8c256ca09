"""Rounds of a small federation under an attack, shared by scripts on active servers."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from glasshouse.attacks.base import Claim
from glasshouse.data.sources import load as load_data
from glasshouse.federation.setting import Setting
from glasshouse.models import build as models
from glasshouse.registry import load
from glasshouse.rng import Rng
from glasshouse.testing.toys import Recorder
from glasshouse.transcript.cut import cut
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.record import Keep, Log, Transcript
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Batch, Broadcast, Crafted, Terms


def cifar(split: str) -> Batch:
    """CIFAR-10 images of a split."""
    return load_data("cifar10").split(split).batch()


def play(
    attack: Any, private: Batch, *, clients: int, arguments: Mapping[str, Any], seed: int, **how: Any
) -> tuple[list[tuple[Claim, ...]], float]:
    """Run FedSGD under ``attack``: its claims about each round, and its own CPU seconds."""
    played = play_out(attack, private, clients=clients, arguments=arguments, seed=seed, **how)
    return played.claims, played.seconds


@dataclass(frozen=True, kw_only=True)
class Played:
    """Rounds under an attack.

    Attributes:
        claims: claims about each round.
        seconds: CPU time of the attack itself.
        transcript: all messages.
        look: (transcript, rounds, client) → the attack's view.
    """

    claims: list[tuple[Claim, ...]]
    seconds: float
    transcript: Transcript
    look: Callable[..., View]


def play_out(
    attack: Any, private: Batch, *, clients: int, arguments: Mapping[str, Any], seed: int, **how: Any
) -> Played:
    """Like :func:`play`, with the transcript.

    Args:
        attack: the attack.
        private: the clients' examples, divided equally.
        clients: number of clients.
        arguments: arguments of the model.
        seed: seed of the federation.
        how: ``model`` (a registered name) or ``architecture``, ``rounds``, ``auxiliary`` (a batch),
            ``defenses``, fields of ``wire.Terms``.
    """
    defenses = tuple(how.pop("defenses", ()))
    grants, rounds = Grants(auxiliary=how.pop("auxiliary", None)), how.pop("rounds", 1)
    each = len(private) // clients
    shape = tuple(private.inputs.shape[1:])
    pictures = Architecture.of(how.pop("model", "mlp"), shape, 10, arguments) if len(shape) == 3 else None
    architecture = how.pop("architecture", pictures)
    fields: dict[str, Any] = {"protocol": "fedsgd", "sends": "gradient", "batch_size": each, **how}
    terms = Terms(architecture=architecture, clients=clients, cohort=clients, **fields)
    rng = Rng.root(seed, salt="benchmark")
    start = models.state(models.build(architecture, rng=rng.child("model")))
    memory: dict[str, torch.Tensor] = {}
    log = Log(terms=terms, keep=Keep())
    spent = 0.0

    def look(
        rounds: tuple[int, ...], client: int | None = None, transcript: Transcript | None = None
    ) -> View:
        return cut(
            transcript or log.transcript(),
            threat=Threat(),
            grants=grants,
            own={},
            memory=memory,
            rounds=rounds,
            client=client,
        )

    def craft(number: int) -> Crafted | None:
        nonlocal spent
        if not hasattr(attack, "craft"):
            return None
        honest = RoundView(
            round=number, broadcast=Broadcast(round=number, architecture=architecture, tensors=start)
        )
        past = look(tuple(range(number))).rounds if number else ()
        seen = View(terms=terms, threat=Threat(), rounds=(*past, honest), grants=grants, memory=memory)
        before = time.process_time()
        crafted: Crafted = attack.craft(seen, rng=rng.child(f"craft/{number}"))
        spent += time.process_time() - before
        memory.update(crafted.memory)
        return crafted

    shards = tuple(torch.arange(each * clients).split(each))  # type: ignore[no-untyped-call]  # torch's own
    setting = Setting(
        terms=terms,
        rounds=rounds,
        private=private,
        shards=shards,
        start=start,
        build=models.build,
        defenses=defenses,
    )
    load("protocols", terms.protocol)().play(
        setting, recorder=Recorder(log), rng=rng.child("federation"), tamper=craft
    )
    client = 0 if attack.needs.scope == "update" else None
    views = [look((number,), client) for number in range(rounds)]
    before = time.process_time()
    claims = [attack.run(view, rng=rng.child("attack")) for view in views]
    spent += time.process_time() - before
    return Played(claims=claims, seconds=spent, transcript=log.transcript(), look=look)
