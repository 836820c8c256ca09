"""Build federation, roles and grants from a scenario: the only place where settings become objects."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

import torch
from torch import Tensor

from glasshouse.audit.attacking.needs import threat_of
from glasshouse.audit.simulation.deal import (
    DealtData,
    announced_public,
    classes_of,
    deal_data,
    gallery_tensors,
    require_part,
    task_for,
)
from glasshouse.audit.simulation.known import known_words
from glasshouse.audit.simulation.pretraining import measure_accuracy, start_of, train_publicly
from glasshouse.audit.simulation.property import holders, with_members
from glasshouse.audit.simulation.record import Facts
from glasshouse.data.base import DataSource
from glasshouse.data.partition import partition
from glasshouse.data.private_domain import ClassRoles
from glasshouse.data.splits import Roles
from glasshouse.data.targets import class_codes
from glasshouse.federation.defenses.guarantee import (
    Exposure,
    Guarantee,
    Private,
    PrivateRounds,
    guarantee,
    remark_on_delta,
)
from glasshouse.federation.rounds import ParameterRounds
from glasshouse.federation.setting import FederationProtocol, Setting
from glasshouse.interfaces import Behaviour, Defense, traits_of
from glasshouse.interfaces.modes import draws_at_random, moved_buffers
from glasshouse.models import build as models
from glasshouse.models.perceptual import network
from glasshouse.registry import create, load
from glasshouse.rng import Rng
from glasshouse.scenario.requirements import distractors, metrics_requiring
from glasshouse.scenario.spec import Grants, Scenario
from glasshouse.scenario.table import Pretraining
from glasshouse.settings import covers
from glasshouse.transcript.record import Keep
from glasshouse.transcript.threat import Threat
from glasshouse.wire import Architecture, Batch, Terms

PERCEPTUAL = Pretraining(epochs=12, batch_size=64, learning_rate=0.02)
_ON_PERSONAL: Final = (
    "Clients keep layers of their own: attacks know these as they started, exactly in a client's first "
    "round only. The server has no whole model, so its accuracy is not measured."
)
LARGE = 500_000
"""Number of parameters from which training on the device outweighs the transfers to and from it."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Built:
    """A scenario without axes, as objects.

    Attributes:
        setting: the federation.
        rng: root of all its random streams; salted with the data's checksum.
        threat: the threat model.
        grants: the grants that the scenario switches on.
        auxiliary: the data of the grant ``auxiliary``.
        challenge: the data of the grant ``challenge``.
        heldout: for utility; None if it is not measured.
        public: public data with true labels, announced or not; for accuracy on them.
        attacked: rounds.
        keep: policy of the transcript.
        scoring: tensors for scoring (distractors, auxiliary data for nulls, perceptual network).
        marked: clients with the property under audit, by its name.
        facts: for the report.
    """

    setting: Setting
    rng: Rng
    threat: Threat
    grants: Grants
    auxiliary: Batch | None
    challenge: Batch | None = None
    heldout: Batch | None
    public: Batch | None
    attacked: frozenset[int]
    keep: Keep = field(default_factory=Keep)
    scoring: Mapping[str, Tensor]
    marked: Mapping[str, tuple[int, ...]]
    facts: Facts


def build(scenario: Scenario, *, seed: int, device: str = "cpu") -> Built:
    """Build everything that one simulation of ``scenario`` needs; ``device``: where large models are trained.

    Raises:
        GlasshouseError: data, model, defence and federation do not match; says which.
    """
    dealt = deal_data(scenario, seed=seed)
    source, roles = dealt.source, dealt.roles
    rng = Rng.root(seed, salt=source.checksum)
    architecture = architecture_of(scenario, dealt)
    behaviours, marked = _behaviours(scenario, rng.child("behaviours"))
    start = start_of(scenario, architecture, roles.public, rng, device=device)
    setting = _setting(scenario, dealt, architecture, start.tensors, behaviours, rng=rng)
    if sum(t.numel() for t in start.tensors.values()) >= LARGE:
        setting = replace(setting, device=device)
    # Members are planted into the data as they were dealt, so that nothing else depends on who is one.
    setting, challenge, members = with_members(setting, scenario.data.members, rng=rng.child("members"))
    built = built_on(scenario, setting, roles, source, rng=rng)
    gallery = {} if dealt.classes is None else gallery_tensors(scenario, dealt.classes)
    known = known_words(require_part(roles.private, "private"), roles, architecture.inputs)
    return replace(
        built,
        challenge=challenge,
        keep=_keep(scenario, built.attacked),
        scoring={**built.scoring, **gallery},
        marked={**marked, **members, **built.marked},
        facts=replace(
            built.facts,
            guarantee=(proved := guarantee_of(setting, built.threat.role)),
            notes=(*built.facts.notes, *known, *_remarks(setting, proved)),
            pretrained=measure_accuracy(start, built.heldout, device=device),
        ),
    )


def architecture_of(scenario: Scenario, dealt: DealtData) -> Architecture:
    """The network that everybody agrees on: the scenario's model for its data."""
    source = dealt.source
    return Architecture(
        name=scenario.model.name,
        inputs=source.inputs,
        task=task_for(scenario, source, classes_of(scenario, source, dealt.classes)),
        arguments=scenario.model.arguments,
    )


def built_on(scenario: Scenario, setting: Setting, roles: Roles, source: DataSource, *, rng: Rng) -> Built:
    """Build what an audit needs besides the federation, whether simulated or captured."""
    architecture, public = setting.terms.architecture, scenario.data.images_are_public
    personal = setting.terms.training.personal  # then the server has no whole model to measure
    return Built(
        setting=setting,
        rng=rng,
        threat=threat_of(scenario),
        grants=scenario.grants,
        auxiliary=roles.auxiliary,
        heldout=roles.heldout if scenario.audit.utility and not personal else None,
        public=roles.public,
        attacked=frozenset(r % setting.rounds for r in scenario.audit.rounds),
        scoring=scoring_of(scenario, roles, architecture, rng),
        marked=holders(scenario, setting),
        facts=Facts(
            data=data_words(source, roles),
            public=source.public if public is None else public,
            model=f"{architecture.name}, {sum(t.numel() for t in setting.start.values()):,} parameters",
            things=architecture.inputs.nouns,
            notes=(_ON_PERSONAL,) if personal else (),
        ),
    )


def _setting(
    scenario: Scenario,
    dealt: DealtData,
    architecture: Architecture,
    start: Mapping[str, Tensor],
    behaviours: Mapping[int, tuple[str, Behaviour]],
    *,
    rng: Rng,
) -> Setting:
    federation, data, classes = scenario.federation, scenario.data, dealt.classes
    private = require_part(dealt.roles.private, "private")
    # A group counts as one victim.
    if data.people == "label":
        private = replace(private, groups=private.labels)
    shards = partition(
        class_codes(private.labels),
        federation.clients,
        kind=data.partition if classes is None else "classes",
        alpha=data.alpha,
        ratio=data.ratio,
        examples=data.examples if classes is None else None,
        rng=rng.child("partition"),
    )
    return Setting(
        terms=_terms(scenario, architecture, classes),
        rounds=federation.rounds,
        private=private,
        shards=shards,
        start=start,
        build=models.build,
        dropout=federation.dropout,
        defenses=tuple(defense_of(d.name, d.arguments) for d in scenario.defenses),
        behaviours=behaviours,
        architectures=_architectures(scenario, architecture),
    )


def _architectures(scenario: Scenario, agreed: Architecture) -> dict[int, Architecture]:
    """Architectures of the clients that run another model than the agreed one."""
    models_ = scenario.federation.client_models
    if not models_:
        return {}
    every = [replace(agreed, name=model.name, arguments=model.arguments) for model in models_]
    return {client: every[client % len(every)] for client in range(scenario.federation.clients)}


def guarantee_of(setting: Setting, role: str = "server") -> Guarantee | None:
    """What is proved over the whole federation against one role.

    The defences of the clients protect against everybody, a server that sees who takes part included; the
    weakest exposure of all clients counts. A server's own noise protects against the others only. What leaves
    beside the parameters is not covered: with running statistics of clients nothing is proved of updates.
    """
    terms, rounds = setting.terms, setting.rounds
    protocol: FederationProtocol = create(load("protocols", terms.protocol), terms.options)
    if isinstance(protocol, PrivateRounds):
        return protocol.proves(rounds)
    passes = protocol.passes(rounds)
    clients = [(terms.of_client(client), len(shard)) for client, shard in enumerate(setting.shards)]
    proofs: list[Guarantee] = []
    # One client whose updates prove nothing is enough: the guarantee is about any of them.
    for exposure in {_exposure(own, examples, rounds, passes) for own, examples in clients}:
        proved = guarantee(setting.defenses, exposure)
        if proved is None or (proved.neighbours == "update" and sends_statistics(setting)):
            proofs = []
            break
        proofs.append(proved)
    own = max(proofs, key=lambda one: one.epsilon, default=None)
    if role == "server" or not isinstance(protocol, ParameterRounds):
        return own
    if (central := protocol.against_clients(rounds)) is None:
        return own
    return central if own is None else min(own, central, key=lambda one: one.epsilon)


def _remarks(setting: Setting, proved: Guarantee | None) -> tuple[str, ...]:
    """What to know of a guarantee."""
    remarks: list[str] = []
    if proved is not None:
        unit = "client" if proved.neighbours == "update" else "example"
        units = setting.terms.clients if unit == "client" else min(len(s) for s in setting.shards)
        remarks += [words] if (words := remark_on_delta(proved.delta, unit, units)) else []
    if any(isinstance(d, Private) for d in setting.defenses) and sends_statistics(setting):
        remarks.append(
            "Running statistics of layers leave the clients without noise: a guarantee about updates "
            "does not cover them, and none is stated."
        )
    if setting.terms.sends in ("gradient", "delta", "parameters") and draws_at_random(
        setting.build(setting.terms.architecture), setting.private.inputs[:2], setting.terms.training
    ):
        remarks.append(
            "Clients train with dropout, or with other draws of the network. Nobody knows what it drew, so "
            "attacks do not repeat them: what they find is a lower end."
        )
    return tuple(remarks)


def _exposure(terms: Terms, examples: int, rounds: int, passes: int | None) -> Exposure:
    """How often a client with so many examples is used."""
    steps, size = terms.steps(examples), min(terms.batch_size, examples)
    if passes is not None:  # in the whole run, including before the first upload
        steps, rounds = passes * math.ceil(examples / size), 1
    return Exposure(rounds=rounds, steps=max(1, steps), batch_rate=size / examples)


def sends_statistics(setting: Setting) -> bool:
    """Whether running statistics, of batch norms or of a network's own code, leave beside the parameters."""
    terms = setting.terms
    if terms.sends not in ("delta", "parameters") or terms.options.get("dropout"):
        return False
    model = setting.build(terms.architecture)
    moved = moved_buffers(model, setting.private.inputs[:4], terms.training)
    return any(not covers((*terms.training.personal, *terms.training.fixed), name) for name in moved)


def _terms(scenario: Scenario, architecture: Architecture, domain_roles: ClassRoles | None) -> Terms:
    federation = scenario.federation
    return Terms(
        protocol=federation.protocol,
        architecture=architecture,
        sends=federation.kind,
        clients=federation.clients,
        cohort=federation.cohort_size,
        batch_size=federation.batch_size,
        local_epochs=federation.local_epochs,
        learning_rate=federation.learning_rate,
        optimizer=federation.optimizer,
        training=federation.local,
        server_rate=federation.server_rate,
        secure_sum=federation.secure_sum,
        weighting=federation.weighting,
        trained=traits_of(federation.protocol).trained,
        public=None if domain_roles is None else announced_public(scenario, domain_roles),
        sensitive=0 if domain_roles is None else domain_roles.sensitive,
        targets=0 if domain_roles is None else domain_roles.targets,
        options=federation.options,
    )


def _keep(scenario: Scenario, attacked: frozenset[int]) -> Keep:
    """What to record. Attacks on logits need all rounds; the last upload follows the last broadcast."""
    federation = scenario.federation
    rounds, logits = federation.keep.rounds, federation.kind == "logits"
    if rounds == "all" or (logits and rounds == "attacked"):
        return Keep()
    kept_rounds = attacked if rounds == "attacked" else frozenset(rounds)
    shown_with = {federation.rounds - 1} if federation.rounds in kept_rounds else set()
    return Keep(updates=kept_rounds, broadcasts=kept_rounds | shown_with)


def defense_of(name: str, arguments: Mapping[str, Any]) -> Defense:
    """A defence with its settings."""
    defense: Defense = create(load("defenses", name), arguments)
    return defense


def _behaviours(
    scenario: Scenario, rng: Rng
) -> tuple[dict[int, tuple[str, Behaviour]], dict[str, tuple[int, ...]]]:
    """The clients that misbehave, and how; ids that are not given are sampled without replacement."""
    order = torch.randperm(scenario.federation.clients, generator=rng.torch()).tolist()
    conduct: dict[int, tuple[str, Behaviour]] = {}
    behaving: dict[str, tuple[int, ...]] = {}
    for plugin in scenario.federation.behaviours:
        behaviour: Behaviour = create(load("behaviours", plugin.name), plugin.arguments)
        free = [c for c in order if c not in conduct]
        ids = plugin.clients if isinstance(plugin.clients, tuple) else tuple(free[: plugin.clients])
        conduct |= dict.fromkeys(ids, (plugin.name, behaviour))
        behaving[plugin.name] = tuple(sorted(ids))
    return conduct, behaving


def scoring_of(scenario: Scenario, roles: Roles, architecture: Architecture, rng: Rng) -> dict[str, Tensor]:
    """Tensors that the judge needs besides the ground truth; attacks see only the auxiliary data of them."""
    references: dict[str, Tensor] = {}
    for role, part in (("auxiliary", roles.auxiliary), ("heldout", roles.heldout), ("spare", roles.spare)):
        if part is not None and len(part):
            references |= {f"{role}.inputs": part.inputs, f"{role}.labels": part.labels}
    if count := distractors(scenario):
        references["distractors"] = require_part(roles.heldout, "heldout").inputs[:count]
    if metrics_requiring(scenario, "stand_in") and roles.auxiliary is not None:
        stand_in = network(architecture)
        stream = rng.child("perceptual")
        model = models.build(stand_in, rng=stream)
        weights = train_publicly(model, stand_in, roles.auxiliary, PERCEPTUAL, rng=stream)
        references |= {f"stand_in.{name}": t for name, t in weights.items()}
    return references


def data_words(source: DataSource, roles: Roles) -> str:
    """The dataset and the number of examples of each role, in words."""
    shape = source.inputs.size_words
    parts = ", ".join(f"{len(batch)} {role}" for role, batch in roles.parts().items())
    targets = f"{source.classes} classes" if source.classes else source.task.name
    return f"{source.name}, {shape}, {targets}: {parts} (checksum {source.checksum[:12]})"
