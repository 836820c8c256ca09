"""Check a scenario's data: files, splits, classes, and enough images for every role."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from glasshouse import registry
from glasshouse.data.partition import Demand
from glasshouse.data.survey import Survey
from glasshouse.errors import GlasshouseError, Problem
from glasshouse.scenario.requirements import role_requests
from glasshouse.scenario.spec import Scenario

Request = tuple[int, str, tuple[int, ...]]
"""Number of images that a role requests, split, classes: as of :func:`role_requests`."""


def data_problems(scenario: Scenario, survey: Survey) -> Iterator[Problem]:
    """All problems with the numbers of images, splits and classes."""
    yield from _weights(scenario)
    if scenario.data.domains.targets:
        yield from _domains(scenario, survey)
        return
    requests = role_requests(scenario)
    if scenario.data.private_source:
        requests.pop("private", None)
    wrong = [p for role in requests for p in _part(role, requests[role], scenario, survey)]
    yield from wrong
    if not wrong:
        yield from _too_few(requests, scenario, survey)
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


def _part(role: str, request: Request, scenario: Scenario, survey: Survey) -> Iterator[Problem]:
    _, split, classes = request
    if split and split not in survey.counts:
        yield Problem(
            path=f"data.{role}_split",
            needs=f"a split among {', '.join(survey.counts)} of '{scenario.data.source}'",
            got=f'"{split}"',
            hint='"" takes the part from all splits',
        )
    if strange := [k for k in classes if k >= survey.classes]:
        yield Problem(
            path=f"data.{role}_classes",
            needs=f"classes from 0 to {survey.classes - 1}",
            got=str(strange),
            hint=f"'{scenario.data.source}' has {survey.classes} classes",
        )


def _cells(request: Request, survey: Survey) -> set[tuple[str, int]]:
    """(split, class) pairs that a role may take images from."""
    _, only, classes = request
    splits = [only] if only else list(survey.counts)
    cells = {(split, label) for split in splits for label in survey.counts[split]}
    return {cell for cell in cells if not classes or cell[1] in classes}


def _too_few(requests: Mapping[str, Request], scenario: Scenario, survey: Survey) -> Iterator[Problem]:
    """Report parts that together request more images than their splits and classes have.

    Names the smallest such set. Duplicates of an image are dealt only once, so slightly fewer images than
    counted here may be available.
    """
    for number in range(1, len(requests) + 1):
        for roles in combinations(requests, number):
            pool = set[tuple[str, int]]().union(*(_cells(requests[role], survey) for role in roles))
            available = sum(survey.counts[split][label] for split, label in pool)
            sizes = {role: requests[role][0] for role in roles}
            images = sum(sizes.values())
            if images > available:
                names = " and ".join(f"{size:,} {role}" for role, size in sizes.items())
                largest = max(roles, key=sizes.__getitem__)
                yield Problem(
                    path="data.examples" if largest == "private" else f"data.{largest}",
                    needs=f"{images:,} images ({names})",
                    got=f"{available:,} in what these parts take from '{scenario.data.source}'",
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
    request = 0, data.private_split, data.private_classes
    wrong = [replace(one, hint="") for one in _part("private", request, scenario, survey)]
    yield from reversed(wrong)
