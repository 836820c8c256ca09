"""Check a scenario's data: files, splits, classes, and enough images for every role."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import final

from glasshouse import registry
from glasshouse.data.partition import Demand
from glasshouse.data.survey import Survey, survey
from glasshouse.errors import GlasshouseError, Problem
from glasshouse.scenario.requirements import role_requests
from glasshouse.scenario.spec import Scenario


@final
@dataclass(frozen=True, kw_only=True)
class Part:
    """The images that one role requests, with the key of ``[data]`` that sets their number."""

    key: str
    role: str
    size: int
    split: str
    classes: tuple[int, ...]


def survey_data(scenario: Scenario) -> tuple[Survey | None, list[Problem]]:
    """Survey the data, and list problems with the files; None: unknown before they are read."""
    data = scenario.data
    survey, problems = _survey("data.source", data.source, data.resize, data.channels)
    if data.private_source:
        problems += _survey("data.private_source", data.private_source, data.resize, data.channels)[1]
    if data.domains.other:
        problems += _survey("data.domains.other", data.domains.other, data.resize, data.channels)[1]
    return survey, problems


def _survey(
    path: str, source: str, resize: int | None, channels: int | None
) -> tuple[Survey | None, list[Problem]]:
    try:
        return survey(source, resize, channels), []
    except GlasshouseError as error:
        return None, [
            Problem(path=path, needs=error.needs, got=f"{error.subject}: {error.got}", hint=error.fix)
        ]


def data_problems(scenario: Scenario, survey: Survey) -> Iterator[Problem]:
    """All problems with the numbers of images, splits and classes."""
    yield from _weights(scenario)
    if scenario.data.domains.targets:
        yield from _domains(scenario, survey)
        return
    parts = list(_parts(scenario))
    wrong = [p for part in parts for p in _part(part, scenario, survey)]
    yield from wrong
    if not wrong:
        yield from _too_few(parts, scenario, survey)
    yield from _partition(scenario, survey)


def _weights(scenario: Scenario) -> Iterator[Problem]:
    weights = scenario.model.weights
    if weights is not None and not Path(weights).expanduser().is_file():
        yield Problem(
            path="model.weights",
            needs="an existing safetensors file",
            got=f"'{weights}' (looked in '{Path.cwd()}')",
            hint="give its path, or leave the key out",
        )


def _parts(scenario: Scenario) -> Iterator[Part]:
    for role, (size, split, classes) in role_requests(scenario).items():
        if not (role == "private" and scenario.data.private_source):
            key = "data.examples" if role == "private" else f"data.{role}"
            yield Part(key=key, role=role, size=size, split=split, classes=classes)


def _part(part: Part, scenario: Scenario, survey: Survey) -> Iterator[Problem]:
    if part.split and part.split not in survey.counts:
        yield Problem(
            path=f"data.{part.role}_split",
            needs=f"a split among {', '.join(survey.counts)} of '{scenario.data.source}'",
            got=f'"{part.split}"',
            hint='"" takes the part from all splits',
        )
    if strange := [k for k in part.classes if k >= survey.classes]:
        yield Problem(
            path=f"data.{part.role}_classes",
            needs=f"classes from 0 to {survey.classes - 1}",
            got=str(strange),
            hint=f"'{scenario.data.source}' has {survey.classes} classes",
        )


def _cells(part: Part, survey: Survey) -> frozenset[tuple[str, int]]:
    """(split, class) pairs that a part may take images from."""
    splits = [part.split] if part.split else list(survey.counts)
    return frozenset(
        (split, label)
        for split in splits
        for label in survey.counts[split]
        if not part.classes or label in part.classes
    )


def _too_few(parts: list[Part], scenario: Scenario, survey: Survey) -> Iterator[Problem]:
    """Report parts that together request more images than their splits and classes have.

    Names the smallest such set. Duplicates of an image are dealt only once, so slightly fewer images than
    counted here may be available.
    """
    for number in range(1, len(parts) + 1):
        for subset in combinations(parts, number):
            pool = frozenset[tuple[str, int]]().union(*(_cells(part, survey) for part in subset))
            available = sum(survey.counts[split][label] for split, label in pool)
            images = sum(part.size for part in subset)
            if images > available:
                names = " and ".join(f"{part.size:,} {part.role}" for part in subset)
                yield Problem(
                    path=max(subset, key=lambda part: part.size).key,
                    needs=f"{images:,} images ({names})",
                    got=f"{available:,} in what these parts take from of '{scenario.data.source}'",
                    hint="ask for fewer, or take a part from another split",
                )
                return


def _partition(scenario: Scenario, survey: Survey) -> Iterator[Problem]:
    data, clients = scenario.data, scenario.federation.clients
    classes = len(set(data.private_classes)) or survey.classes
    try:
        demand = registry.require_declaration("partitioners", data.partition, "demand", Demand)
    except GlasshouseError as error:
        yield Problem(path="data.partition", needs=error.needs, got=error.got, hint=error.fix)
        return
    if demand.whole_classes and clients > classes:
        yield Problem(
            path="federation.clients",
            needs=f'at most {classes} under partition = "{data.partition}": every client holds whole classes',
            got=str(clients),
            hint="use fewer clients, or another data.partition",
        )
    if demand.classes > classes:
        yield Problem(
            path="data.partition",
            needs=f"{demand.classes} classes for each client",
            got=f"{classes} in the private data",
            hint="name more data.private_classes, or use another partition",
        )
    if data.examples < demand.examples:
        yield Problem(
            path="data.examples",
            needs=f'at least {demand.examples} for each client under partition = "{data.partition}"',
            got=str(data.examples),
        )


def _domains(scenario: Scenario, survey: Survey) -> Iterator[Problem]:
    data, domains = scenario.data, scenario.data.domains
    identities = domains.identities or survey.classes
    if not domains.targets < identities <= survey.classes:
        yield Problem(
            path="data.domains.identities" if domains.identities else "data.domains.targets",
            needs=f"targets < identities <= {survey.classes}, the classes of '{data.source}'",
            got=f"targets = {domains.targets}, identities = {identities}",
            hint="ask for fewer targets, or for more classes",
        )
    if strange := [k for k in data.private_classes if k >= survey.classes]:
        yield Problem(
            path="data.private_classes", needs=f"classes from 0 to {survey.classes - 1}", got=str(strange)
        )
    if data.private_split and data.private_split not in survey.counts:
        yield Problem(
            path="data.private_split",
            needs=f"a split among {', '.join(survey.counts)} of '{data.source}'",
            got=f'"{data.private_split}"',
        )
