"""Cross-key rules: combinations of individually valid values that contradict each other."""

from collections import Counter
from collections.abc import Iterator

from glasshouse import registry
from glasshouse.errors import Problem
from glasshouse.interfaces import Traits, traits_of
from glasshouse.scenario.feasible import feasibility_problems
from glasshouse.scenario.requirements import metrics_requiring
from glasshouse.scenario.spec import Federation, Scenario
from glasshouse.scenario.table import Plugin


def rule_problems(scenario: Scenario) -> list[Problem]:
    """Contradictions within one scenario without axes."""
    return [
        *_federation(scenario),
        *_data(scenario),
        *_threat(scenario),
        *_audit(scenario),
        *feasibility_problems(scenario),
    ]


def _federation(scenario: Scenario) -> Iterator[Problem]:
    federation = scenario.federation
    examples = scenario.data.examples
    if federation.batch_size > examples and not scenario.data.domains.targets:
        yield Problem(
            path="federation.batch_size",
            needs=f"at most data.examples = {examples}, a client's whole data",
            got=str(federation.batch_size),
        )
    if federation.cohort_size < 1:
        yield Problem(
            path="federation.cohort",
            needs=f"at least one of {federation.clients} clients: cohort >= {0.5 / federation.clients:.3g}",
            got=str(federation.cohort),
        )
    yield from _protocol(federation)
    yield from _behaviours(scenario)


def _protocol(federation: Federation) -> Iterator[Problem]:
    if federation.protocol not in registry.names("protocols"):
        return  # reported elsewhere
    traits = traits_of(federation.protocol)
    if federation.kind not in traits.kinds:
        hint = 'set protocol = "fedsgd" for gradients' if federation.kind == "gradient" else ""
        yield Problem(
            path="federation.sends",
            needs=f"{' or '.join(traits.kinds)} under {federation.protocol}",
            got=f'"{federation.kind}"',
            hint=hint,
        )
    if (traits.one_pass or federation.kind == "gradient") and federation.local_epochs != 1:
        hint = 'set protocol = "fedavg"' if traits.one_pass else 'set sends = "delta"'
        yield Problem(
            path="federation.local_epochs",
            needs=f"1 under {federation.protocol} (one gradient of the whole batch)",
            got=str(federation.local_epochs),
            hint=f"{hint} for several local steps",
        )
    yield from _optimizer(federation)


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
    yield Problem(path="federation.optimizer", needs=words, got=", ".join(sorted(how.traits)), hint=hint)


def _behaviours(scenario: Scenario) -> Iterator[Problem]:
    clients, misbehaving = scenario.federation.clients, 0
    for i, behaviour in enumerate(scenario.federation.behaviours):
        ids = behaviour.clients if isinstance(behaviour.clients, tuple) else ()
        misbehaving += behaviour.clients if isinstance(behaviour.clients, int) else len(ids)
        bad = [c for c in ids if not 0 <= c < clients]
        if bad or len(set(ids)) != len(ids):
            yield Problem(
                path=f"federation.behaviours[{i}].clients",
                needs=f"different ids from 0 to {clients - 1}",
                got=str(list(ids)),
            )
    if misbehaving > clients:
        yield Problem(
            path="federation.behaviours",
            needs=f"at most {clients} misbehaving clients in all",
            got=str(misbehaving),
        )


def _data(scenario: Scenario) -> Iterator[Problem]:
    data = scenario.data
    among_others = metrics_requiring(scenario, "distractors")
    if data.private_source and among_others:
        yield Problem(
            path="audit.metrics",
            needs="no metric that needs other images of the same data where data.private_source is set",
            got=", ".join(f'"{name}"' for name in among_others),
            hint="the other images would come from data.source",
        )
    if data.alpha is not None and data.partition != "dirichlet":
        yield Problem(
            path="data.alpha",
            needs='nothing unless partition = "dirichlet"',
            got=f'{data.alpha} with "{data.partition}"',
        )
    yield from _domains(scenario)
    yield from _start(scenario)


def _start(scenario: Scenario) -> Iterator[Problem]:
    how, weights = scenario.model.pretraining, scenario.model.weights
    fits_head = weights and how.head_epochs and _traits(scenario).start == "features"
    if (how.epochs or fits_head) and not scenario.data.public:
        yield Problem(
            path=f"model.pretraining.{'epochs' if how.epochs else 'head_epochs'}",
            needs=f"data.public > 0, the images to {'pre-train on' if how.epochs else 'fit the head to'}",
            got="data.public = 0",
            hint="set data.public to a number of images",
        )
    if how.epochs and weights:
        yield Problem(
            path="model.weights",
            needs="weights or pretraining, not both",
            got=f'"{weights}" and model.pretraining.epochs = {how.epochs}',
            hint="set model.pretraining.epochs = 0; head_epochs may still fit the head to the features",
        )


def _domains(scenario: Scenario) -> Iterator[Problem]:
    domains, federation, logits = scenario.data.domains, scenario.federation, _shares_logits(scenario)
    if logits and not domains.targets:
        yield Problem(
            path="data.domains.targets",
            needs=f"at least 1 under {federation.protocol}, which shares logits on public data",
            got="0",
            hint='[data.domains] targets = 4, shifts = ["lower_half_mask"]',
        )
    if domains.targets and federation.clients > domains.targets:
        yield Problem(
            path="federation.clients",
            needs=f"at most data.domains.targets = {domains.targets}: each client holds whole classes",
            got=str(federation.clients),
        )
    if domains.targets and not domains.shifts and not domains.other:
        yield Problem(
            path="data.domains.shifts",
            needs="a shift, or data.domains.other",
            got="neither",
            hint="glasshouse list transforms",
        )
    if domains.hidden and (len(domains.hidden) != 2 or domains.hidden[0] >= domains.hidden[1]):
        yield Problem(
            path="data.domains.hidden",
            needs="two shares of the height, the first below the second",
            got=str(list(domains.hidden)),
            hint="the lower half is [0.5, 1.0]",
        )
    if scenario.data.private_classes and domains.targets not in (0, len(scenario.data.private_classes)):
        yield Problem(
            path="data.domains.targets",
            needs=f"{len(scenario.data.private_classes)}, the number of data.private_classes",
            got=str(domains.targets),
        )
    for i, defense in enumerate(scenario.defenses):
        if logits and "epsilon" in defense.arguments and defense.name == "dp_sgd":
            yield Problem(
                path=f"defenses[{i}].epsilon",
                needs=f"noise_multiplier instead: the rounds of {federation.protocol} differ in their passes",
                got=str(defense.arguments["epsilon"]),
            )
    if federation.client_models and not logits:
        yield Problem(
            path="federation.client_models",
            needs="a protocol that shares logits: others need one architecture",
            got=federation.protocol,
        )


def _shares_logits(scenario: Scenario) -> bool:
    return (scenario.federation.sends or _traits(scenario).sends) == "logits"


def _traits(scenario: Scenario) -> Traits:
    """Traits of the protocol; the defaults for an unknown one, which is reported elsewhere."""
    name = scenario.federation.protocol
    return traits_of(name) if name in registry.names("protocols") else Traits()


def _threat(scenario: Scenario) -> Iterator[Problem]:
    threat, federation = scenario.threat, scenario.federation
    sees = frozenset(threat.sees or ())
    if threat.role != "server" and (sees - {"broadcast"} or threat.changes):
        yield Problem(
            path="threat.role",
            needs='sees = ["broadcast"] and changes = [] for a client or bystander',
            got=f"sees = {sorted(sees)}, changes = {sorted(threat.changes)}",
        )
    hidden, visible = ("update", "aggregate") if federation.secure_sum else ("aggregate", "update")
    if threat.role == "server" and hidden in sees:
        yield Problem(
            path="threat.sees",
            needs=f"what there is: secure_sum = {str(federation.secure_sum).lower()} has no {hidden}s to see",
            got=f'"{hidden}"',
            hint=f"did you mean {visible}?",
        )
    is_client = threat.role == "client"
    if is_client != (threat.client is not None) or (threat.client or 0) >= federation.clients:
        yield Problem(
            path="threat.client",
            needs=f"an id from 0 to {federation.clients - 1}"
            if is_client
            else 'nothing unless role = "client"',
            got="nothing" if threat.client is None else str(threat.client),
        )


def _audit(scenario: Scenario) -> Iterator[Problem]:
    audit, rounds = scenario.audit, scenario.federation.rounds
    for i, number in enumerate(audit.rounds):
        if not -rounds <= number < rounds:
            yield Problem(
                path=f"audit.rounds[{i}]", needs=f"a round from {-rounds} to {rounds - 1}", got=str(number)
            )
    yield from _kept(scenario)
    names = {metric.name for metric in audit.metrics}
    for name in scenario.policy.max_gain:
        if name not in names:
            yield Problem(
                path=f"policy.max_gain.{name}",
                needs="a metric that audit.metrics asks for",
                got=f"'{name}'",
                hint=registry.nearest_names(name, tuple(names)),
            )
    if scenario.policy.min_accuracy is not None and not audit.utility:
        yield Problem(path="policy.min_accuracy", needs="audit.utility = true", got="false")
    if audit.utility and not scenario.data.heldout:
        yield Problem(
            path="data.heldout",
            needs="images to measure utility on",
            got="0",
            hint="give a number, or set audit.utility = false",
        )
    if metrics_requiring(scenario, "distractors") and scenario.data.heldout < audit.distractors:
        yield Problem(
            path="audit.distractors",
            needs=f"at most data.heldout = {scenario.data.heldout}, where they are drawn from",
            got=str(audit.distractors),
            hint="raise data.heldout",
        )
    if scenario.captured and audit.epsilon.claimed and audit.epsilon.unit == "example":
        yield Problem(
            path="audit.epsilon.unit",
            needs='"client", or nothing: canaries of a federation that ran are clients that took part',
            got='"example"',
            hint="leave it out; docs/flower.md has the canary client",
        )
    yield from _contrast(scenario)
    yield from _repeated("attacks", scenario.attacks)
    yield from _repeated("audit.metrics", audit.metrics)
    if not scenario.attacks:
        yield Problem(
            path="attacks", needs="at least one attack", got="none", hint="'glasshouse list attacks'"
        )
    if len(set(audit.seeds)) != len(audit.seeds):
        yield Problem(path="audit.seeds", needs="different seeds", got=str(list(audit.seeds)))


def _kept(scenario: Scenario) -> Iterator[Problem]:
    federation = scenario.federation
    last = (
        federation.rounds if _shares_logits(scenario) else federation.rounds - 1
    )  # logit protocols have one more upload
    kept_rounds = federation.keep.rounds
    for i, number in enumerate(kept_rounds if isinstance(kept_rounds, tuple) else ()):
        if not 0 <= number <= last:
            yield Problem(
                path=f"federation.keep.rounds[{i}]", needs=f"a round from 0 to {last}", got=str(number)
            )


def _contrast(scenario: Scenario) -> Iterator[Problem]:
    contrast = scenario.audit.contrast
    labels = tuple(a.label or a.name for a in scenario.attacks)
    if contrast and (contrast not in labels or len(labels) < 2):
        yield Problem(
            path="audit.contrast",
            needs=f"one of several attacks: {', '.join(labels)}",
            got=f"'{contrast}'",
            hint=registry.nearest_names(contrast, labels),
        )


def _repeated(path: str, plugins: tuple[Plugin, ...]) -> Iterator[Problem]:
    for name, count in Counter(p.label or p.name for p in plugins).items():
        if count > 1:
            yield Problem(
                path=path,
                needs="entries that can be told apart",
                got=f"{count} called '{name}'",
                hint='give each a label = "..."',
            )
