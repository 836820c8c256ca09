"""Check that the models of a scenario fit its images, by building them and passing one blank image."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

from glasshouse.cache import once
from glasshouse.data.survey import Survey
from glasshouse.errors import GlasshouseError, Inapplicable, Problem
from glasshouse.federation.client import LocalTraining
from glasshouse.federation.defenses.base import NetworkBound
from glasshouse.interfaces import traits_of
from glasshouse.modalities.image import Image
from glasshouse.models.build import build, shortlist
from glasshouse.models.derivatives import Fault, derivative_fault
from glasshouse.registry import create, load
from glasshouse.rng import Rng
from glasshouse.scenario.spec import Federation, Scenario
from glasshouse.scenario.table import Plugin
from glasshouse.settings import Training, covers
from glasshouse.tasks.base import Task
from glasshouse.tasks.classification import Classification
from glasshouse.tasks.declare import declared_task
from glasshouse.wire import Architecture, Batch

MOST_PARAMETERS = 2**28
"""Largest number of parameters of a model: 1 GiB in float32, which every client and every attack copies."""

MOST_TRIED = 64
"""Largest batch on which a defence is tried before a run; the run tries its own."""

SMALL_LAYER = 2**22
"""Largest number of parameters of a layer, guessed from the model's arguments, for building it in memory."""


def networks(scenario: Scenario, survey: Survey) -> Iterator[tuple[str, Architecture]]:
    """(path, network) of every model of the scenario; the agreed one first."""
    domains = scenario.data.domains
    classes = survey.classes
    if domains.targets:
        labels_public = traits_of(scenario.federation.protocol).labels_public
        classes = (domains.identities or classes) if labels_public else domains.targets
    models: list[tuple[str, Plugin]] = [("model", scenario.model)]
    models += [(f"federation.client_models[{i}]", m) for i, m in enumerate(scenario.federation.client_models)]
    inputs = Image(size=survey.shape)
    task: Task = Classification(classes=max(2, classes))
    if (declared := scenario.data.task) is not None:
        facts = {**vars(inputs), "classes": classes}
        task = declared_task(declared.name, declared.arguments, facts=facts)
    of_data = partial(Architecture, inputs=inputs, task=task)
    for path, model in models:
        yield path, of_data(name=model.name, arguments=model.arguments)


def agreed_network(scenario: Scenario, survey: Survey) -> Architecture:
    """The model that all parties know."""
    return next(network for _, network in networks(scenario, survey))


def network_problems(scenario: Scenario, survey: Survey) -> Iterator[Problem]:
    """Problems with models that cannot be built for these images, or are too large."""
    trained = traits_of(scenario.federation.protocol).trained
    for path, network in networks(scenario, survey):
        fault = fault_of(network)
        if fault is None and ":" in network.name:
            fault = derivative_fault(network, trained)
        if fault is not None:
            needs, got, hint = fault
            yield Problem(path=path, needs=needs, got=got, hint=hint)
        elif path == "model":
            yield from _patterns(scenario.federation.local, network)
            yield from _defenses(scenario, network)


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
    apart = {"personal": training.personal, "fixed": training.fixed}
    if not any(apart.values()):
        return
    with without_memory(network):
        model = build(network)
    names = list(model.state_dict())
    layers = sorted({name.rpartition(".")[0] for name in names})
    for key, patterns in apart.items():
        for pattern in patterns:
            if not any(covers((pattern,), name) for name in names):
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


def without_memory(network: Architecture) -> AbstractContextManager[object]:
    """The meta device, on which large networks are built without memory or computation; takes 1 s to load."""
    numbers = [v for v in network.arguments.values() if isinstance(v, int)]
    widest, pixels = max([1, *numbers]), math.prod(network.input_shape)
    return torch.device("meta") if widest * max(pixels, 9 * widest) > SMALL_LAYER else nullcontext()


def fault_of(network: Architecture) -> Fault | None:
    """The problem with a network, as (needs, got, hint); None: it accepts the images. Cached."""
    return once(["fault", repr(network)], lambda: _find_fault(network))


def _find_fault(network: Architecture) -> Fault | None:
    shape = "×".join(map(str, network.input_shape))

    try:
        with without_memory(network), torch.no_grad():
            model = build(network).eval()
            size = sum(p.numel() for p in model.parameters())
            if size > MOST_PARAMETERS:
                return f"at most {MOST_PARAMETERS:,} parameters", f"{size:,}", "make it narrower"
            model(network.inputs.blank(1))
    except NotImplementedError:
        return None  # its computation depends on values, which the meta device lacks
    except GlasshouseError as error:
        return error.needs, error.got, error.fix
    except (RuntimeError, ValueError, OverflowError, ZeroDivisionError, MemoryError) as error:
        got = f"'{network.name}': {(str(error).splitlines() or [type(error).__name__])[0][:160]}"
        return f"a model for {network.inputs.nouns} of {shape}", got, "set data.resize, or another model"
    return None


def describe(network: Architecture) -> str:
    """Describe the user's own network in a sentence."""
    model = build(network)
    size = sum(p.numel() for p in model.parameters())
    kinds = [type(module).__name__ for module in model.modules()]
    counts = {
        "BatchNorm (with the statistics received)": sum("BatchNorm" in kind for kind in kinds),
        "dropout (off, unless the protocol turns it on)": sum("Dropout" in kind for kind in kinds),
    }
    notes = [f"{count} {words}" for words, count in counts.items() if count]
    head = getattr(model, "head_name", "head")
    return ", ".join([f"{network.name}: {size:,} parameters", f"logits from layer '{head}'", *notes])
