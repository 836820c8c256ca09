"""Check that the models of a scenario fit its images, by building them and passing one blank image."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, final

import torch

from glasshouse.audit.simulation.deal import task_as
from glasshouse.cache import once
from glasshouse.data.sources import load as load_source
from glasshouse.data.survey import Survey
from glasshouse.errors import GlasshouseError, Inapplicable, Problem
from glasshouse.federation.client import LocalTraining
from glasshouse.federation.defenses.base import NetworkBound
from glasshouse.interfaces import traits_of
from glasshouse.modalities.base import Modality
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
from glasshouse.transcript.files import read_terms
from glasshouse.wire import Architecture, Batch

MOST_PARAMETERS = 2**28
"""Largest number of parameters of a model: 1 GiB in float32, which every client and every attack copies."""

MOST_TRIED = 64
"""Largest batch on which a defence is tried before a run; the run tries its own."""

SMALL_LAYER = 2**22
"""Largest number of parameters of a layer, guessed from the model's arguments, for building it in memory."""


def networks(scenario: Scenario, survey: Survey | None) -> Iterator[tuple[str, Architecture]]:
    """(path, network) of every model of the scenario; the agreed one first.

    Of a capture it is the one that its terms state. Data that cannot be counted without reading are read.

    Raises:
        GlasshouseError: the data or the terms cannot be read.
    """
    if scenario.captured:
        yield "model", read_terms(Path(scenario.captured) / "transcript", trust_factory=True).architecture
        return
    of_data = _of_data(scenario, survey)
    models: list[tuple[str, Plugin]] = [("model", scenario.model)]
    models += [(f"federation.client_models[{i}]", m) for i, m in enumerate(scenario.federation.client_models)]
    for path, model in models:
        yield path, of_data(name=model.name, arguments=model.arguments)


def _of_data(scenario: Scenario, survey: Survey | None) -> Callable[..., Architecture]:
    """A network without its name and arguments: for the examples and the targets of the scenario."""
    if survey is None:
        data = scenario.data
        read = _read(data.source, data.resize, data.channels, data.tokenizer, data.length)
        drafted = task_as(scenario, read.task, read.facts, max(2, _classes(scenario, read.facts["classes"])))
        return partial(Architecture, inputs=read.inputs, task=drafted)
    inputs, classes = Image(size=survey.shape), _classes(scenario, survey.classes)
    task: Task = Classification(classes=max(2, classes))
    if (declared := scenario.data.task) is not None:
        facts = {**vars(inputs), "classes": classes}
        task = declared_task(declared.name, declared.arguments, facts=facts)
    return partial(Architecture, inputs=inputs, task=task)


@final
@dataclass(frozen=True, kw_only=True)
class _Read:
    """What data say that were read: their examples, the task that they suggest, and its facts."""

    inputs: Modality
    task: Task
    facts: Mapping[str, Any]


@lru_cache(maxsize=16)
def _read(name: str, resize: int | None, channels: int | None, tokenizer: str, length: int) -> _Read:
    """Read data that cannot be counted without it; once, as counting does."""
    source = load_source(name, resize=resize, channels=channels, tokenizer=tokenizer, length=length)
    return _Read(inputs=source.inputs, task=source.task, facts=source.facts)


def _classes(scenario: Scenario, classes: int) -> int:
    """The classes of the data that the agreed network tells apart."""
    domains = scenario.data.domains
    if not domains.targets:
        return classes
    labels_public = traits_of(scenario.federation.protocol).labels_public
    return (domains.identities or classes) if labels_public else domains.targets


def agreed_network(scenario: Scenario, survey: Survey | None) -> Architecture:
    """The model that all parties know.

    Raises:
        GlasshouseError: the data or the terms cannot be read.
    """
    return next(network for _, network in networks(scenario, survey))


def network_problems(scenario: Scenario, survey: Survey | None) -> Iterator[Problem]:
    """Problems with models that cannot be built for these examples, or are too large."""
    trained = traits_of(scenario.federation.protocol).trained
    if scenario.federation.kind == "document":
        return  # the model is grown, not built
    try:
        every = list(networks(scenario, survey))
    except GlasshouseError as error:
        got = f"{error.subject}: {error.got}"
        path = "model" if scenario.captured else "data.source"
        yield Problem(path=path, needs=error.needs, got=got, hint=error.fix)
        return
    if scenario.captured:
        yield from _beside_capture(scenario, survey, every[0][1])
    for path, network in every:
        fault = fault_of(network)
        if fault is None and ":" in network.name:
            fault = derivative_fault(network, trained)
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
        read = _read(data.source, data.resize, data.channels, data.tokenizer, data.length)
        shape, classes = read.inputs.shape, int(read.facts["classes"])
    else:
        shape, classes = survey.shape, survey.classes
    if (shape, classes) != (network.input_shape, network.classes):
        nouns = network.inputs.nouns
        yield Problem(
            path="data.source",
            needs=f"{nouns} {network.input_shape} of {network.classes} classes, as clients train on",
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
