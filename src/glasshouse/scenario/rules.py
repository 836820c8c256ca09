"""Cross-key rules: combinations of individually valid values that contradict each other."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from glasshouse import registry
from glasshouse.errors import Problem
from glasshouse.interfaces import Traits, traits_of
from glasshouse.scenario.feasible import feasibility_problems, protocol_traits
from glasshouse.scenario.overrides import parse_path
from glasshouse.scenario.problems import unmet
from glasshouse.scenario.requirements import metrics_requiring
from glasshouse.scenario.spec import Federation, Scenario
from glasshouse.scenario.table import Plugin
from glasshouse.settings import ORDINARY

STEPS: Final = ("accumulate", "proximal", "drop_last", "local_steps", "epochs_by_client")
"""Keys of ``federation.training`` that say nothing where clients take no steps."""


def rule_problems(scenario: Scenario) -> list[Problem]:
    """Contradictions within one scenario without axes."""
    problems = (
        *_federation(scenario),
        *_data(scenario),
        *_threat(scenario),
        *_audit(scenario),
        *_split(scenario),
        *feasibility_problems(scenario),
    )
    return [p if p.got else replace(p, got=_value_at(scenario, p.path)) for p in problems]


def _value_at(scenario: Scenario, path: str) -> str:
    """The value of a setting, as a problem shows it."""
    value: Any = scenario
    for part in parse_path(path):
        value = value[int(part)] if part.isdigit() else getattr(value, part)
    if isinstance(value, bool):
        return str(value).lower()
    return "nothing" if value is None else str(list(value) if isinstance(value, tuple) else value)


def _federation(scenario: Scenario) -> Iterator[Problem]:
    federation, examples = scenario.federation, scenario.data.examples
    if federation.batch_size > examples and not (scenario.data.domains.targets or scenario.captured):
        yield unmet("federation.batch_size", f"at most data.examples = {examples}, a client's whole data")
    largest = max(federation.training.batch_sizes_by_client, default=0)
    if largest > examples and not scenario.data.domains.targets:
        needs = f"at most data.examples = {examples}, a client's whole data"
        yield unmet("federation.training.batch_sizes_by_client", needs, got=str(largest))
    if federation.cohort_size < 1:
        least = f"cohort >= {0.5 / federation.clients:.3g}"
        yield unmet("federation.cohort", f"at least one of {federation.clients} clients: {least}")
    yield from _protocol(federation)
    yield from _behaviours(scenario)


def _protocol(federation: Federation) -> Iterator[Problem]:
    if federation.protocol not in registry.names("protocols"):
        return  # reported elsewhere
    traits = traits_of(federation.protocol)
    if federation.kind not in traits.kinds:
        yield unmet(
            "federation.sends",
            f"{' or '.join(traits.kinds)} under {federation.protocol}",
            got=f'"{federation.kind}"',
            hint='set protocol = "fedsgd" for gradients' if federation.kind == "gradient" else "",
        )
    if (traits.one_pass or federation.kind == "gradient") and federation.local_epochs != 1:
        hint = 'set protocol = "fedavg"' if traits.one_pass else 'set sends = "delta"'
        needs = f"1 under {federation.protocol} (one gradient of the whole batch)"
        yield unmet("federation.local_epochs", needs, hint=f"{hint} for several local steps")
    if federation.training.personal and federation.kind not in ("delta", "parameters"):
        hint = 'set protocol = "fedavg", or sends = "delta"'
        needs = "nothing where clients take no local steps"
        got = ", ".join(federation.training.personal)
        yield unmet("federation.training.personal", needs, got=got, hint=hint)
    yield from _steps(federation, traits)
    for option, key in traits.terms.items():
        if getattr(federation.training, key) != getattr(ORDINARY, key):
            needs = f"nothing beside federation.options.{option}"
            yield unmet(f"federation.training.{key}", needs, hint=f"leave federation.training.{key} out")
    yield from _optimizer(federation)


def _steps(federation: Federation, traits: Traits) -> Iterator[Problem]:
    """Refuse terms of local steps where none are taken, and what a protocol cannot be combined with."""
    how = federation.training
    if federation.kind not in ("delta", "parameters"):
        plain = {key: getattr(ORDINARY, key) for key in STEPS}
        for key in (key for key, value in plain.items() if getattr(how, key) != value):
            needs = "nothing where clients take no local steps"
            hint = 'set protocol = "fedavg", or sends = "delta"'
            yield unmet(f"federation.training.{key}", needs, got=str(getattr(how, key)), hint=hint)
    # Counted steps and passes over the data would say two things about the same training.
    if how.local_steps is not None and (federation.local_epochs != 1 or how.epochs_by_client):
        needs = "nothing beside local_epochs or epochs_by_client: it counts steps, whatever the passes"
        yield unmet("federation.training.local_steps", needs, got=str(how.local_steps))
    if traits.controls and federation.optimizer.traits - {"sgd", "schedule"}:
        needs = f"plain sgd under {federation.protocol}, whose control variates are mean gradients"
        yield unmet("federation.optimizer", needs, got=", ".join(sorted(federation.optimizer.traits)))
    for key in sorted({"sum_bits", "sum_bound"} & set(federation.options)):
        if not federation.secure_sum:
            needs = "nothing where there is no secure sum, whose masked numbers it rounds"
            yield unmet(f"federation.options.{key}", needs, got=str(federation.options[key]))
    if traits.singly and federation.secure_sum:
        needs = f"false under {federation.protocol}: its server needs single updates"
        yield unmet("federation.secure_sum", needs, got="true")


def _optimizer(federation: Federation) -> Iterator[Problem]:
    """Refuse an optimizer that would be ignored because clients take no local steps with it."""
    how, kind = federation.optimizer, federation.kind
    if kind == "gradient" and (how.traits - {"sgd", "schedule"} or how.over == "steps"):
        words = "plain sgd, with a schedule over rounds at most: clients send gradients, and the server steps"
        hint = 'set protocol = "fedavg", or sends = "delta", for clients that step'
    elif kind == "logits" and how.traits != {"sgd"}:
        words = f"none under {federation.protocol}: its clients train by Adam, as its options say"
        hint = "leave [federation.optimizer] out"
    else:
        return
    yield unmet("federation.optimizer", words, got=", ".join(sorted(how.traits)), hint=hint)


def _behaviours(scenario: Scenario) -> Iterator[Problem]:
    clients, misbehaving = scenario.federation.clients, 0
    for i, behaviour in enumerate(scenario.federation.behaviours):
        ids = behaviour.clients if isinstance(behaviour.clients, tuple) else ()
        misbehaving += behaviour.clients if isinstance(behaviour.clients, int) else len(ids)
        if any(not 0 <= c < clients for c in ids) or len(set(ids)) != len(ids):
            yield unmet(f"federation.behaviours[{i}].clients", f"different ids from 0 to {clients - 1}")
    if misbehaving > clients:
        needs = f"at most {clients} misbehaving clients in all"
        yield unmet("federation.behaviours", needs, got=str(misbehaving))


def _data(scenario: Scenario) -> Iterator[Problem]:
    data = scenario.data
    among_others = metrics_requiring(scenario, "distractors")
    if data.private_source and among_others:
        yield unmet(
            "audit.metrics",
            "no metric that needs other images of the same data where data.private_source is set",
            got=", ".join(f'"{name}"' for name in among_others),
            hint="the other images would come from data.source",
        )
    for name, owner in (("alpha", "dirichlet"), ("ratio", "unequal")):
        if (given := getattr(data, name)) is not None and data.partition != owner:
            got = f'{given} with "{data.partition}"'
            yield unmet(f"data.{name}", f'nothing unless partition = "{owner}"', got=got)
    yield from _domains(scenario)
    yield from _start(scenario)


def _start(scenario: Scenario) -> Iterator[Problem]:
    how, weights = scenario.model.pretraining, scenario.model.weights
    fits_head = weights and how.head_epochs and protocol_traits(scenario).start == "features"
    if (how.epochs or fits_head) and not scenario.data.public:
        yield unmet(
            f"model.pretraining.{'epochs' if how.epochs else 'head_epochs'}",
            f"data.public > 0, the images to {'pre-train on' if how.epochs else 'fit the head to'}",
            got="data.public = 0",
            hint="set data.public to a number of images",
        )
    if how.epochs and weights:
        yield unmet(
            "model.weights",
            "weights or pretraining, not both",
            got=f'"{weights}" and model.pretraining.epochs = {how.epochs}',
            hint="set model.pretraining.epochs = 0; head_epochs may still fit the head to the features",
        )


def _domains(scenario: Scenario) -> Iterator[Problem]:
    domains, federation, logits = scenario.data.domains, scenario.federation, _shares_logits(scenario)
    # Logits are shared on public classes: somebody must hold the others.
    if logits and not domains.targets:
        needs = f"at least 1 under {federation.protocol}, which shares logits on public data"
        hint = '[data.domains] targets = 4, shifts = ["lower_half_mask"]'
        yield unmet("data.domains.targets", needs, hint=hint)
    if domains.targets and federation.clients > domains.targets:
        needs = f"at most data.domains.targets = {domains.targets}: each client holds whole classes"
        yield unmet("federation.clients", needs)
    if domains.targets and not domains.shifts and not domains.other:
        needs, hint = "a shift, or data.domains.other", "glasshouse list transforms"
        yield unmet("data.domains.shifts", needs, got="neither", hint=hint)
    if domains.hidden and (len(domains.hidden) != 2 or domains.hidden[0] >= domains.hidden[1]):
        needs = "two shares of the height, the first below the second"
        yield unmet("data.domains.hidden", needs, hint="the lower half is [0.5, 1.0]")
    # The two ways to name who is private must agree.
    private = len(scenario.data.private_classes)
    if private and domains.targets not in (0, private):
        yield unmet("data.domains.targets", f"{private}, the number of data.private_classes")
    # An ε needs the number of passes over the data in advance.
    for i, defense in enumerate(scenario.defenses):
        if logits and "epsilon" in defense.arguments and defense.name == "dp_sgd":
            needs = f"noise_multiplier instead: the rounds of {federation.protocol} differ in their passes"
            yield unmet(f"defenses[{i}].epsilon", needs, got=str(defense.arguments["epsilon"]))
    if federation.client_models and not logits:
        needs = "a protocol that shares logits: others need one architecture"
        yield unmet("federation.client_models", needs, got=federation.protocol)


def _shares_logits(scenario: Scenario) -> bool:
    return (scenario.federation.sends or protocol_traits(scenario).sends) == "logits"


def _threat(scenario: Scenario) -> Iterator[Problem]:
    threat, federation = scenario.threat, scenario.federation
    sees = frozenset(threat.sees or ())
    if threat.role != "server" and (sees - {"broadcast"} or threat.changes):
        yield unmet(
            "threat.role",
            'sees = ["broadcast"] and changes = [] for a client or bystander',
            got=f"sees = {sorted(sees)}, changes = {sorted(threat.changes)}",
        )
    hidden, visible = ("update", "aggregate") if federation.secure_sum else ("aggregate", "update")
    if threat.role == "server" and hidden in sees:
        needs = f"what there is: secure_sum = {str(federation.secure_sum).lower()} has no {hidden}s to see"
        yield unmet("threat.sees", needs, got=f'"{hidden}"', hint=f"did you mean {visible}?")
    is_client = threat.role == "client"
    if is_client != (threat.client is not None) or (threat.client or 0) >= federation.clients:
        ids = f"an id from 0 to {federation.clients - 1}"
        yield unmet("threat.client", ids if is_client else 'nothing unless role = "client"')


def _audit(scenario: Scenario) -> Iterator[Problem]:
    audit, rounds = scenario.audit, scenario.federation.rounds
    for i, number in enumerate(audit.rounds):
        if not -rounds <= number < rounds:
            yield unmet(f"audit.rounds[{i}]", f"a round from {-rounds} to {rounds - 1}")
    yield from _kept(scenario.federation, logits=_shares_logits(scenario))
    # A limit on a metric that nobody measures would hold for ever.
    names = tuple(metric.label or metric.name for metric in audit.metrics)
    for name in scenario.policy.max_gain:
        if name not in names:
            path, hint = f"policy.max_gain.{name}", registry.nearest_names(name, names)
            yield unmet(path, "a metric that audit.metrics asks for", got=f"'{name}'", hint=hint)
    if scenario.policy.min_accuracy is not None:
        yield from _measurable(scenario)
    # Utility and distractors are taken from the held-out examples.
    if audit.utility and not scenario.data.heldout:
        hint = "give a number, or set audit.utility = false"
        yield unmet("data.heldout", "images to measure utility on", hint=hint)
    if metrics_requiring(scenario, "distractors") and scenario.data.heldout < audit.distractors:
        needs = f"at most data.heldout = {scenario.data.heldout}, where they are drawn from"
        yield unmet("audit.distractors", needs, hint="raise data.heldout")
    if scenario.captured and audit.epsilon.claimed and audit.epsilon.unit == "example":
        yield unmet(
            "audit.epsilon.unit",
            '"client", or nothing: canaries of a federation that ran are clients that took part',
            got='"example"',
            hint="leave it out; docs/flower.md has the canary client",
        )
    # What is named in results needs a name of its own.
    labels = tuple(a.label or a.name for a in scenario.attacks)
    if audit.contrast and (audit.contrast not in labels or len(labels) < 2):
        needs = f"one of several attacks: {', '.join(labels)}"
        hint = registry.nearest_names(audit.contrast, labels)
        yield unmet("audit.contrast", needs, got=f"'{audit.contrast}'", hint=hint)
    yield from _repeated("attacks", scenario.attacks)
    yield from _repeated("audit.metrics", audit.metrics)
    if not scenario.attacks:
        yield unmet("attacks", "at least one attack", got="none", hint="'glasshouse list attacks'")
    if len(set(audit.seeds)) != len(audit.seeds):
        yield unmet("audit.seeds", "different seeds")


def _split(scenario: Scenario) -> Iterator[Problem]:
    """Refuse blocks that cannot be drawn: beside seeds, of a capture, or with no victim each."""
    blocks, victims = scenario.audit.blocks, scenario.audit.victims
    reasons = {
        "1 where audit.seeds says how the federation is repeated": bool(scenario.audit.seeds),
        "1: a federation that ran was drawn once": bool(scenario.captured),
        f"at most audit.victims = {victims}, which are split": blocks > victims,
    }
    for needs, broken in reasons.items():
        if broken and blocks > 1:
            yield unmet("audit.blocks", needs, got=str(blocks))


def _measurable(scenario: Scenario) -> Iterator[Problem]:
    """Refuse a limit on an accuracy that is not measured."""
    if not scenario.audit.utility:
        yield unmet("policy.min_accuracy", "audit.utility = true", got="false")
    if scenario.federation.training.personal:
        needs = "nothing beside personal layers: the server has no whole model to measure"
        yield unmet("policy.min_accuracy", needs, got=str(scenario.policy.min_accuracy))


def _kept(federation: Federation, *, logits: bool) -> Iterator[Problem]:
    last = federation.rounds if logits else federation.rounds - 1  # logit protocols have one more upload
    kept = federation.keep.rounds
    for i, number in enumerate(kept if isinstance(kept, tuple) else ()):
        if not 0 <= number <= last:
            yield unmet(f"federation.keep.rounds[{i}]", f"a round from 0 to {last}")


def _repeated(path: str, plugins: tuple[Plugin, ...]) -> Iterator[Problem]:
    for name, count in Counter(p.label or p.name for p in plugins).items():
        if count > 1:
            hint = 'give each a label = "..."'
            yield unmet(path, "entries that can be told apart", got=f"{count} called '{name}'", hint=hint)
