"""Every built-in attack that alters models, disguised, against the guard: tests/guard/test_disguised.py.

One client with a batch of 64 examples answers with one gradient. The server crafts a model with the attack's
own ``craft``, disguises it (``evasions``), and reads the answer with the attack's own
``run``. The leak is the share of the batch that it matches, minus that of examples that were not used.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.guard.disguised.cases import CASES, Case
from benchmarks.guard.disguised.evasions import EVASIONS, Evaded, Evasion, Material
from glasshouse import registry
from glasshouse.api.guard import named_source, with_behaviour
from glasshouse.attacks.base import Claim, Reconstruction, Representations
from glasshouse.attacks.parts.readout.linear_tail import latents
from glasshouse.data.sources import load as load_data
from glasshouse.errors import BadValue
from glasshouse.guard.inspect import Seen, inspect
from glasshouse.guard.pursuit.examples import Own
from glasshouse.guard.pursuit.inspect import HonestRanges
from glasshouse.metrics.match import assign, mse_table
from glasshouse.metrics.representations import SAME, matches
from glasshouse.models.build import build, load, state
from glasshouse.rng import Rng
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Batch, Broadcast, Terms, Update

BATCH: Final = 64
"""Examples of a client's update."""
MISS: Final = 0.05
"""A model that passes although it leaks at least this share of a batch more than an honest one is a miss."""
HONEST: Final = "honest model"
"""Name in place of an evasion: nothing was crafted."""
SEEN: Final = 10**-1.8
"""Mean squared error of pixels in [0, 1] below which an image counts as recovered: 18 dB."""
OWN, KNOWN = 256, 400
"""Numbers of examples of the client, and of the server."""
NEEDED: Final = OWN + 2 * BATCH + KNOWN


@final
@dataclass(frozen=True, kw_only=True)
class Trial:
    """One disguised model.

    Attributes:
        case: title of the attack.
        evasion: name in ``EVASIONS``.
        findings: of the guard, over all rounds; empty: the model passes.
        leak: share of the batch that the attack recovers.
        usual: share that it recovers from an honest model's update.
        values: numbers behind the findings, of the last round.
    """

    case: str
    evasion: str
    findings: tuple[str, ...]
    leak: float
    usual: float
    values: Mapping[str, float]

    @property
    def missed(self) -> bool:
        """Whether it passed but leaks more than an honest model, or is honest but did not pass."""
        if self.evasion == HONEST:
            return bool(self.findings)
        return not self.findings and self.leak - self.usual >= MISS


def examples(name: str = "digits") -> tuple[Batch, int]:
    """Examples for :func:`run_cases`, and the number of classes.

    Args:
        name: of a data set, a folder of images or an ``npz`` file; its first split is used.
    """
    source = load_data(named_source(name))
    part = next(iter(source.splits.values()))
    order = torch.randperm(len(part), generator=Rng.root(0, salt="examples").torch())
    return part.batch(order[:NEEDED]), source.classes


def run_cases(
    data: Batch,
    *,
    classes: int,
    cases: tuple[Case, ...] = CASES,
    evasions: Mapping[str, Evasion] = EVASIONS,
    seed: int = 0,
) -> Iterator[Trial]:
    """Every case under every evasion that applies to it, and each case's honest model (evasion "honest").

    Args:
        data: at least ``NEEDED`` examples; client and server get different ones.
        classes: of the data.
        cases: attacks.
        evasions: by title.
        seed: of all random draws.

    Raises:
        BadValue: too few examples.
    """
    if len(data) < NEEDED:
        raise BadValue(
            "self-test of the guard",
            needs=f"{NEEDED} examples",
            got=f"{len(data)}",
            fix="give more data (--data), or leave it out: built-in digits",
        )
    order = torch.randperm(len(data), generator=Rng.root(seed, salt="deal").torch())
    ranges: dict[str, HonestRanges] = {}
    for case in cases:
        yield from _Play(case, data.pick(order[:NEEDED]), classes, ranges, seed=seed).trials(evasions)


class _Play:
    """One case: the parties' data, and the models that are sent."""

    def __init__(
        self, case: Case, data: Batch, classes: int, ranges: dict[str, HonestRanges], *, seed: int
    ) -> None:
        channels, height, width = data.inputs.shape[1:]
        self.case, self.ranges, self.rng = case, ranges, Rng.root(seed, salt=case.title)
        own, batch, others, known = torch.split(torch.arange(NEEDED), [OWN, BATCH, BATCH, KNOWN])
        self.own, self.batch, self.others = data.pick(own), data.pick(batch), data.pick(others)
        self.grants = Grants(auxiliary=data.pick(known))
        architecture = Architecture.of(case.model, (channels, height, width), classes, case.arguments)
        self.terms = Terms(
            protocol=case.protocol,
            architecture=architecture,
            sends="gradient",
            clients=1,
            cohort=1,
            batch_size=BATCH,
            trained="head." if case.protocol == "transfer" else "",
        )
        self.attack = registry.create(registry.load("attacks", case.attack), case.settings)
        self.start = state(build(architecture, rng=self.rng.child("model")))

    def trials(self, evasions: Mapping[str, Evasion]) -> Iterator[Trial]:
        usual = 0.0
        for name, evade in {HONEST: _sent_honestly, **evasions}.items():
            played = self.rounds(evade)
            if played is None:
                continue
            seen, leak = played
            usual = leak if name == HONEST else usual
            yield Trial(
                case=self.case.title,
                evasion=name,
                findings=tuple(dict.fromkeys(f for one in seen for f in one.findings)),
                leak=leak,
                usual=usual,
                values=seen[-1].inspection.values,
            )

    def rounds(self, evade: Evasion) -> tuple[tuple[Seen, ...], float] | None:
        """The guard's inspection of each round's model, and the share recovered over all rounds."""
        memory: dict[str, Tensor] = {}
        past: list[RoundView] = []
        seen: list[Seen] = []
        read, read_of_others = torch.zeros(BATCH, dtype=torch.bool), torch.zeros(BATCH, dtype=torch.bool)
        for number in range(self.case.rounds):
            plain = Broadcast(round=number, architecture=self.terms.architecture, tensors=self.start)
            view = self.view((*past, RoundView(round=number, broadcast=plain)), memory)
            crafted = self.attack.craft(view, rng=self.rng.child(f"craft/{number}"))
            memory |= crafted.memory
            sent = crafted.addressed.get(0, crafted.default)
            evaded = self.disguise(sent, evade)
            if evaded is None:
                return None
            honest_elsewhere = evade is _sent_honestly and not self.case.agreed
            seen.append(self.judge(self.start if honest_elsewhere else evaded.tensors, sent.architecture))
            model = _loaded(sent, evaded)
            update = Update(
                round=number,
                client=0,
                kind="gradient",
                tensors=evaded.back(_gradient(model, self.batch, self.terms.trained)),
                examples=BATCH,
            )
            past.append(RoundView(round=number, broadcast=sent, updates={0: update}))
            claims = self.attack.run(self.view(past[-1:], memory), rng=self.rng.child("read"))
            features = self.features(sent)
            read |= _read(claims, self.batch.inputs, features)
            read_of_others |= _read(claims, self.others.inputs, features)
        return tuple(seen), max(0.0, float(read.double().mean() - read_of_others.double().mean()))

    def view(self, rounds: Any, memory: Mapping[str, Tensor]) -> View:
        """The server's view."""
        return View(
            terms=self.terms, threat=Threat(), rounds=tuple(rounds), grants=self.grants, memory=memory
        )

    def disguise(self, sent: Broadcast, evade: Evasion) -> Evaded | None:
        """The model ``sent`` after the evasion."""
        honest = {**state(build(sent.architecture, rng=self.rng.child("honest"))), **self.start}
        model = build(sent.architecture)
        load(model, sent.tensors)
        first, behind = _crafted_layers(model, honest)
        assert self.grants.auxiliary is not None
        material = Material(
            tensors={name: t.clone() for name, t in sent.tensors.items()},
            honest=honest,
            first=first,
            behind=behind,
            inputs=_entering(model, first, self.grants.auxiliary.inputs),
            nested=self.case.nested,
            generator=self.rng.child("evasion").torch(),
        )
        return evade(material)

    def features(self, sent: Broadcast) -> Callable[[Tensor], Tensor]:
        """A function from images to the inputs of the head's first linear layer."""
        model = build(sent.architecture)
        load(model, sent.tensors)
        return lambda images: _entering(model, _linear(model, "head.")[0][0], images)

    def judge(self, tensors: Mapping[str, Tensor], architecture: Architecture) -> Seen:
        """The guard's inspection with default limits."""
        agreed = architecture if self.case.agreed else self.terms.architecture
        network = build(agreed)
        data = (self.own.inputs, self.own.labels)
        outcome = inspect(tensors, agreed=state(network))
        if not outcome.fits:
            return outcome
        key = repr(agreed)
        if key not in self.ranges:
            self.ranges[key] = HonestRanges.of(network, Own(inputs=data[0], targets=data[1]))
        return with_behaviour(outcome, tensors, network, data, honest=self.ranges[key])


def _sent_honestly(material: Material) -> Evaded:
    """No evasion: the honest model itself."""
    return Evaded(tensors={name: material.honest[name] for name in material.tensors})


def _linear(model: nn.Module, prefix: str = "") -> list[tuple[str, nn.Linear]]:
    return [
        (n, m)
        for n, m in model.named_modules()
        if isinstance(m, nn.Linear) and n.startswith(prefix.rstrip("."))
    ]


def _crafted_layers(model: nn.Module, honest: Mapping[str, Tensor]) -> tuple[str, str]:
    """Names of the first linear layer that differs from the honest model, and of the next one."""
    layers = _linear(model)
    for place, (name, layer) in enumerate(layers):
        if not torch.equal(layer.weight, honest[f"{name}.weight"]):
            after = layers[place + 1 : place + 2]
            fits = [n for n, m in after if m.in_features == layer.out_features]
            return name, fits[0] if fits else ""
    raise AssertionError("an attack that changes parameters changes a linear layer")


def _entering(model: nn.Module, layer: str, images: Tensor) -> Tensor:
    """The inputs of ``layer`` for images, (N, D)."""
    with torch.no_grad():
        return latents(model.eval(), layer)(images)


def _loaded(sent: Broadcast, evaded: Evaded) -> nn.Module:
    """The network that the client trains; renamed tensors are assigned by position."""
    model = build(sent.architecture)
    load(model, dict(zip(sent.tensors, evaded.tensors.values(), strict=True)))
    return model.eval()


def _gradient(model: nn.Module, batch: Batch, trained: str) -> dict[str, Tensor]:
    names, weights = zip(*((n, p) for n, p in model.named_parameters() if n.startswith(trained)), strict=True)
    gradient = torch.autograd.grad(F.cross_entropy(model(batch.inputs), batch.labels), weights)
    return dict(zip(names, gradient, strict=True))


def _read(claims: tuple[Claim, ...], images: Tensor, features: Callable[[Tensor], Tensor]) -> Tensor:
    """Which of the images are matched by a claimed image or feature vector, (B,) bool; each counts once."""
    read = torch.zeros(len(images), dtype=torch.bool)
    for claim in claims:
        if isinstance(claim, Reconstruction) and len(claim.inputs):
            table = mse_table(images, claim.inputs)
            read |= torch.tensor([j >= 0 and table[i, j] < SEEN for i, j in enumerate(assign(table))])
        if isinstance(claim, Representations) and len(claim.vectors):
            read |= torch.from_numpy(matches(claim.vectors, features(images), tolerance=SAME)[1])
    return read
