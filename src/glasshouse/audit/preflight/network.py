"""What is wrong with the models of a cell: they are built, and take one blank example."""

from collections.abc import Iterable, Iterator
from functools import partial

import torch

from glasshouse.audit.preflight.outlook import Outlook, fault_of, read_whole, without_memory
from glasshouse.cache import once
from glasshouse.data.survey import Survey
from glasshouse.errors import Inapplicable, Problem
from glasshouse.federation.client import LocalTraining
from glasshouse.federation.defenses.base import NetworkBound
from glasshouse.federation.defenses.guarantee import Private, remark_on_delta
from glasshouse.interfaces import Defense, traits_of
from glasshouse.interfaces.modes import draws_at_random
from glasshouse.models.build import build, shortlist
from glasshouse.models.derivatives import Fault, derivative_fault, pass_fault
from glasshouse.registry import create, load
from glasshouse.rng import Rng
from glasshouse.scenario.spec import Federation, Scenario
from glasshouse.settings import Training, covers
from glasshouse.wire import Architecture, Batch

MOST_TRIED = 64
"""Largest batch on which a defence is tried before a run; the run tries its own."""


def network_problems(outlook: Outlook) -> Iterator[Problem]:
    """Problems with models that cannot be built for these examples, or are too large."""
    scenario = outlook.scenario
    trained = traits_of(scenario.federation.protocol).trained
    if scenario.federation.kind == "document":
        return  # the model is grown, not built
    if (error := outlook.trouble) is not None:
        got = f"{error.subject}: {error.got}"
        path = "model" if scenario.captured else "data.source"
        yield Problem(path=path, needs=error.needs, got=got, hint=error.fix)
    if scenario.captured and outlook.agreed is not None:
        yield from _beside_capture(scenario, outlook.survey, outlook.agreed)
    for path, network in outlook.networks:
        fault = fault_of(network)
        if fault is None and ":" in network.name:
            how = scenario.federation.local
            fault = derivative_fault(network, trained)
            fault = pass_fault(network, how) if fault is None else fault
        if fault is not None:
            needs, got, hint = fault
            yield Problem(path=path, needs=needs, got=got, hint=hint)
        elif path == "model":
            yield from _patterns(scenario.federation.local, network)
            yield from _defenses(scenario, network)


def _beside_capture(scenario: Scenario, survey: Survey | None, network: Architecture) -> Iterator[Problem]:
    """Data that are unlike those of the clients that were captured."""
    data = scenario.data
    if survey is None:
        read = read_whole(data.source, data.resize, data.channels, data.tokenizer, data.length)
        shape, classes = read.inputs.shape, int(read.facts["classes"])
    else:
        shape, classes = survey.shape, survey.classes
    if not network.fits(shape, classes):
        yield Problem(
            path="data.source",
            needs=f"{network.asks}, as clients train on",
            got=f"{shape} of {classes}",
            hint="set data.source, resize, channels or length to what the clients' data are like",
        )


def _defenses(scenario: Scenario, network: Architecture) -> Iterator[Problem]:
    """Defences that do not work on the network, as DP-SGD where examples influence each other."""
    if scenario.federation.kind == "logits":
        return
    for i, plugin in enumerate(scenario.defenses):
        defense = create(load("defenses", plugin.name), plugin.arguments)
        if isinstance(defense, NetworkBound):
            key = ["defence on a network", repr(defense), repr(network), scenario.federation.model_dump()]
            fault = once(key, partial(_unfit, defense, network, scenario.federation))
            if fault is not None:
                needs, got, hint = fault
                yield Problem(path=f"defenses[{i}]", needs=needs, got=got, hint=hint)


def _unfit(defense: NetworkBound, network: Architecture, federation: Federation) -> Fault | None:
    """What a defence needs of the network that it lacks, tried on random examples."""
    train = LocalTraining(
        kind=federation.kind,
        batch_size=federation.batch_size,
        epochs=federation.local_epochs,
        trained=traits_of(federation.protocol).trained,
        dropout=bool(federation.options.get("dropout", False)),
        training=federation.local,
    )
    model, count = build(network), min(federation.batch_size, MOST_TRIED) + 1
    inputs = network.inputs.probes(4 * count, Rng.root(0).child("probes").torch())
    inputs = inputs[torch.randperm(len(inputs), generator=Rng.root(1).torch())[:count]]
    with torch.no_grad():
        outputs = model.eval()(inputs[:1])
    labels = network.task.blank(count, tuple(outputs.shape[1:]))
    try:
        defense.check_network(model, Batch(inputs=inputs, labels=labels), train)
    except Inapplicable as error:
        return error.needs, error.got, error.fix
    return None


def _patterns(training: Training, network: Architecture) -> Iterator[Problem]:
    """Patterns of names that match nothing in the model, or leave nothing to be sent."""
    stated = {"personal": training.personal, "fixed": training.fixed, "frozen": training.frozen}
    if not any(stated.values()):
        return
    with without_memory(network):
        model = build(network)
    names = list(model.state_dict())
    layers = sorted({name.rpartition(".")[0] for name in names})
    # A layer stays in evaluation whether it has tensors or not, as dropout has none.
    matched = {"frozen": [name for name, _ in model.named_modules() if name]}
    for key, patterns in stated.items():
        for pattern in patterns:
            if not any(covers((pattern,), name) for name in matched.get(key, names)):
                needs = "patterns of names of the model's layers"
                yield Problem(
                    path=f"federation.training.{key}",
                    needs=needs,
                    got=pattern,
                    hint=f"its layers: {shortlist(layers)}",
                )
    both = (*training.personal, *training.fixed)
    if all(covers(both, name) for name, _ in model.named_parameters()):
        needs = "a parameter that travels"
        yield Problem(path="federation.training", needs=needs, got="all personal or fixed", hint="")


def large_deltas(looks: Iterable[Outlook]) -> tuple[str, ...]:
    """What to know of the δ of the cells' defences, each in a sentence: of those above 1 in their units."""
    found = []
    for scenario in (look.scenario for look in looks):
        clients, examples = scenario.federation.clients, scenario.data.examples
        for plugin in scenario.defenses:
            defense: Defense = create(load("defenses", plugin.name), plugin.arguments)
            delta = getattr(defense, "delta", None)
            if isinstance(defense, Private) and isinstance(delta, float):
                # Local training is about examples, what is done to an update about the client.
                unit = ("example", examples) if defense.place == "local" else ("client", clients)
                found.append(remark_on_delta(delta, *unit))
    return tuple(dict.fromkeys(one for one in found if one))


def own_networks(looks: Iterable[Outlook]) -> tuple[str, ...]:
    """The user's own networks in all cells, each in a sentence."""
    built = (one for one in looks if one.scenario.federation.kind != "document")
    own = (
        (network, one.scenario.federation.local)
        for one in built
        for _, network in one.networks
        if ":" in network.name
    )
    return tuple(dict.fromkeys(_describe(network, how) for network, how in own))


def _describe(network: Architecture, how: Training) -> str:
    model, trains = build(network), how.mode == "training"
    size = sum(p.numel() for p in model.parameters())
    kinds = [type(module).__name__ for module in model.modules()]
    counts = {
        f"BatchNorm (with the statistics {'of the batch' if trains else 'received'})": "BatchNorm",
        f"dropout ({'on' if trains else 'off, unless the protocol turns it on'})": "Dropout",
    }
    found = {words: sum(name in kind for kind in kinds) for words, name in counts.items()}
    notes = [f"{count} {words}" for words, count in found.items() if count]
    if draws_at_random(model, network.inputs.probes(4, Rng.root(0).torch()), how):
        notes.append("draws at random while clients train")
    head = getattr(model, "head_name", "head")
    return ", ".join([f"{network.name}: {size:,} parameters", f"logits from layer '{head}'", *notes])
