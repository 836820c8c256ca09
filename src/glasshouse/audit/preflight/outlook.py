"""What is known of a cell before it runs: what its data hold, and which networks its parties will build.

Looked at once for each cell, by ``check`` and by the run alike. What is wrong with it, what rules its attacks
out, how much work it is and how much room it takes is said of this record; nothing is read again for it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, final

import torch

from glasshouse.audit.simulation.deal import task_as
from glasshouse.cache import once
from glasshouse.data.sources import load as load_source
from glasshouse.data.survey import Survey, survey
from glasshouse.errors import GlasshouseError, Problem
from glasshouse.interfaces import traits_of
from glasshouse.modalities.base import Modality
from glasshouse.modalities.image import Image
from glasshouse.models.build import build
from glasshouse.models.derivatives import Fault
from glasshouse.scenario.axes import Cell
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Plugin
from glasshouse.tasks.base import Task
from glasshouse.tasks.classification import Classification
from glasshouse.tasks.declare import declared_task
from glasshouse.transcript.files import read_terms
from glasshouse.wire import Architecture

MOST_PARAMETERS = 2**28
"""Largest number of parameters of a model: 1 GiB in float32, which every client and every attack copies."""

SMALL_LAYER = 2**22
"""Largest number of parameters of a layer, guessed from the model's arguments, for building it in memory."""


@final
@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What is known of a cell before it runs.

    Attributes:
        scenario: the cell's, without axes.
        survey: what its data hold; None: unknown before they are read.
        wrong: problems with the files of its data.
        networks: (path, network) of every model, the agreed one first; empty where ``trouble`` or ``wrong``
            says why.
        trouble: why the networks are unknown.
    """

    scenario: Scenario
    survey: Survey | None
    wrong: tuple[Problem, ...]
    networks: tuple[tuple[str, Architecture], ...] = ()
    trouble: GlasshouseError | None = None

    @property
    def agreed(self) -> Architecture | None:
        """The network that all parties know; None: the data or the terms cannot be read."""
        return self.networks[0][1] if self.networks else None


NOTHING_KNOWN: Final[Mapping[str, Outlook]] = MappingProxyType({})


def look_at(cells: Iterable[Cell], known: Mapping[str, Outlook] = NOTHING_KNOWN) -> dict[str, Outlook]:
    """The outlook of every cell, by its hash; those in ``known`` are not looked at again."""
    return {cell.hash: known.get(cell.hash) or look(cell.scenario) for cell in cells}


def look(scenario: Scenario) -> Outlook:
    """What is known of a scenario without axes. Data that cannot be counted without reading are read."""
    found, wrong = _survey_data(scenario)
    if any(problem.path == "data.source" for problem in wrong):
        return Outlook(scenario=scenario, survey=found, wrong=tuple(wrong))
    try:
        networks = tuple(_networks(scenario, found))
    except GlasshouseError as error:
        return Outlook(scenario=scenario, survey=found, wrong=tuple(wrong), trouble=error)
    return Outlook(scenario=scenario, survey=found, wrong=tuple(wrong), networks=networks)


def _survey_data(scenario: Scenario) -> tuple[Survey | None, list[Problem]]:
    """Survey the data, and list problems with the files; None: unknown before they are read."""
    data = scenario.data
    others = {"data.private_source": data.private_source, "data.domains.other": data.domains.other}
    surveys: dict[str, Survey | None] = {}
    problems: list[Problem] = []
    for path, source in {"data.source": data.source, **others}.items():
        if path in others and not source:
            continue
        try:
            surveys[path] = survey(source, data.resize, data.channels)
        except GlasshouseError as error:
            got = f"{error.subject}: {error.got}"
            problems.append(Problem(path=path, needs=error.needs, got=got, hint=error.fix))
    return surveys.get("data.source"), problems


def _networks(scenario: Scenario, survey: Survey | None) -> Iterator[tuple[str, Architecture]]:
    """(path, network) of every model of the scenario; the agreed one first.

    Of a capture it is the one that its terms state.

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
        read = read_whole(data.source, data.resize, data.channels, data.tokenizer, data.length)
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
class WholeData:
    """What data say that were read: their examples, the task that they suggest, and its facts."""

    inputs: Modality
    task: Task
    facts: Mapping[str, Any]


@lru_cache(maxsize=16)
def read_whole(name: str, resize: int | None, channels: int | None, tokenizer: str, length: int) -> WholeData:
    """Read data that cannot be counted without it; once, as counting does."""
    source = load_source(name, resize=resize, channels=channels, tokenizer=tokenizer, length=length)
    return WholeData(inputs=source.inputs, task=source.task, facts=source.facts)


def _classes(scenario: Scenario, classes: int) -> int:
    """The classes of the data that the agreed network tells apart."""
    domains = scenario.data.domains
    if not domains.targets:
        return classes
    labels_public = traits_of(scenario.federation.protocol).labels_public
    return (domains.identities or classes) if labels_public else domains.targets


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
