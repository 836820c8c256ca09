"""Load a scenario's data and deal them to the roles, by class and domain under ``[data.domains]``."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast, final

import torch
from torch import Tensor

from glasshouse.data.base import DataSource
from glasshouse.data.domains import hidden_rows
from glasshouse.data.private_domain import ClassRoles, ClassWant, Shift, deal_classes
from glasshouse.data.sources import load as load_source
from glasshouse.data.splits import Role, RoleRequest, Roles, check_disjoint, deal
from glasshouse.errors import BadValue
from glasshouse.interfaces import traits_of
from glasshouse.metrics.statistics.rank import comparisons_for
from glasshouse.modalities.image import Image
from glasshouse.registry import create, load
from glasshouse.rng import Rng
from glasshouse.scenario.requirements import role_requests
from glasshouse.scenario.spec import Data, Scenario
from glasshouse.tasks.base import Task
from glasshouse.tasks.classification import Classification
from glasshouse.tasks.declare import declared_task
from glasshouse.tensors import class_means
from glasshouse.wire import Batch

UNKNOWN = -1
SPARE_NUMBERS: Final = 2**24
"""Largest number of pixel values of the spare held-out images that are stored (64 MiB)."""


def class_roles(scenario: Scenario, source: DataSource, *, rng: Rng) -> ClassRoles | None:
    """Assign classes to clients under ``[data.domains]``; None: images are dealt instead."""
    data, domains = scenario.data, scenario.data.domains
    if not domains.targets:
        return None
    other = load_source(domains.other, resize=data.resize, channels=data.channels) if domains.other else None
    want = ClassWant(
        targets=domains.targets,
        chosen=data.private_classes,
        identities=domains.identities,
        per_class=domains.per_class,
        heldout=domains.heldout,
        same_photos=domains.same_photos,
        sensitive=domains.sensitive,
    )
    return deal_classes(
        source, want, shifts=_shifts(scenario), other=other, split=data.private_split, rng=rng
    )


def as_roles(classes: ClassRoles) -> Roles:
    """Convert roles by class to roles of images."""
    return Roles(private=classes.private, public=classes.public, heldout=classes.heldout, duplicates={})


def announced_public(scenario: Scenario, domain_roles: ClassRoles) -> Batch | None:
    """The public data as announced by the protocol: without labels under dsfl, None under fedavg."""
    protocol = traits_of(scenario.federation.protocol)
    if scenario.federation.kind != "logits":
        return None
    if protocol.labels_public:
        return domain_roles.public
    unknown = torch.full_like(domain_roles.public.labels, UNKNOWN)
    return Batch(inputs=domain_roles.public.inputs, labels=unknown)


def classes_of(scenario: Scenario, source: DataSource, domain_roles: ClassRoles | None) -> int:
    """Number of classes of the models: only the targets if the public data have no labels."""
    if domain_roles is None:
        return source.classes
    labels_public = traits_of(scenario.federation.protocol).labels_public
    return len(domain_roles.classes) if labels_public else domain_roles.targets


def task_for(scenario: Scenario, source: DataSource, classes: int) -> Task:
    """The task of the federation: as the scenario declares, else as the data suggest."""
    return task_as(scenario, source.task, source.facts, classes)


def task_as(scenario: Scenario, drafted: Task, facts: Mapping[str, Any], classes: int) -> Task:
    """As :func:`task_for`, of data that suggest the task ``drafted`` and say ``facts``."""
    if (declared := scenario.data.task) is not None:
        known = {**facts, "classes": classes}
        return declared_task(declared.name, declared.arguments, facts=known)
    return replace(drafted, classes=classes) if isinstance(drafted, Classification) else drafted


def gallery_tensors(scenario: Scenario, domain_roles: ClassRoles) -> dict[str, Tensor]:
    """Mean images that class metrics compare with, and the image rows that count.

    ``gallery.people``: of every class in the private domain, (J, C, H, W), the targets first;
    ``gallery.public``: of every class's public images in both domains; ``gallery.prior``: of all
    public images of the private domain; ``gallery.classes``: the source's labels of the targets.
    """
    classes = len(domain_roles.classes)
    height = int(domain_roles.public.inputs.shape[2])
    clear = domain_roles.public.pick(torch.arange(domain_roles.sensitive))
    people = torch.cat([domain_roles.private.inputs, clear.inputs])
    whose = torch.cat([domain_roles.private.labels, clear.labels])
    have = torch.tensor([bool((whose == j).any()) for j in range(classes)])
    return {
        "gallery.people": class_means(people, whose, classes),
        "gallery.known": have,
        "gallery.public": class_means(domain_roles.public.inputs, domain_roles.public.labels, classes),
        "gallery.prior": clear.inputs.mean(0, keepdim=True),
        "gallery.rows": torch.tensor(
            hidden_rows(_shifts(scenario), height, shares=scenario.data.domains.hidden)
        ),
        "gallery.targets": torch.tensor(domain_roles.targets),
        "gallery.classes": torch.tensor(domain_roles.classes[: domain_roles.targets]),
    }


def _shifts(scenario: Scenario) -> list[Shift]:
    return [create(load("transforms", s.name), s.arguments) for s in scenario.data.domains.shifts]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class DealtData:
    """A data set and its roles; ``classes``: roles by class and domain, under ``[data.domains]``."""

    source: DataSource
    roles: Roles
    classes: ClassRoles | None


def deal_data(scenario: Scenario, *, seed: int) -> DealtData:
    """The data of a scenario, by role.

    Raises:
        GlasshouseError: the data cannot be read, or are too few.
    """
    source = load_data(scenario.data, scenario.data.source)
    rng = Rng.root(seed, salt=source.checksum)
    classes = class_roles(scenario, source, rng=rng.child("roles"))
    roles = _deal_roles(scenario, source, rng) if classes is None else as_roles(classes)
    return DealtData(source=source, roles=roles, classes=classes)


def load_data(data: Data, name: str, *, like: DataSource | None = None) -> DataSource:
    """Load the dataset ``name`` with the scenario's settings; images are resized to those of ``like``."""
    if like is not None and isinstance(like.inputs, Image):
        channels, side, _ = like.inputs.size
        return load_source(name, resize=side, channels=channels)
    return load_source(
        name, resize=data.resize, channels=data.channels, tokenizer=data.tokenizer, length=data.length
    )


def _deal_roles(scenario: Scenario, source: DataSource, rng: Rng) -> Roles:
    """Deal images to roles; private ones from another dataset if the scenario names one."""
    wants, data = wants_of(scenario), scenario.data
    if not data.private_source:
        spare = spare_of(scenario, source)
        return deal(source, wants, by=data.deal, spare=spare, rng=rng.child("roles"))
    want = wants.pop("private")
    other = load_data(data, data.private_source, like=source)
    roles = deal(source, wants, by=data.deal, rng=rng.child("roles"))
    part = require_part(
        deal(other, {"private": want}, by=data.deal, rng=rng.child("roles/private")).private, "private"
    )
    private = replace(part, labels=part.labels % source.classes)
    check_disjoint({**roles.parts(), "private": private})
    return replace(roles, private=private)


def require_part(part: Batch | None, role: str) -> Batch:
    """Return the part of a role, which must not be None.

    Raises:
        BadValue: it is None.
    """
    if part is None:
        raise BadValue(
            f"{role} data", needs="at least one image", got="none", fix=f"ask for some in [data]: {role}"
        )
    return part


def wants_of(scenario: Scenario) -> dict[Role, RoleRequest]:
    """The images that each role requests."""
    return {
        cast("Role", role): RoleRequest(size=size, split=split, classes=classes)
        for role, (size, split, classes) in role_requests(scenario).items()
    }


def spare_of(scenario: Scenario, source: DataSource) -> int:
    """Number of spare held-out images for verdicts on single victims, as far as the data have enough."""
    most = SPARE_NUMBERS // math.prod(source.input_shape)
    return max(0, min(most_spare(scenario), most) - scenario.data.heldout)


def most_spare(scenario: Scenario) -> int:
    """Held-out images that would suffice to name any victim, if the data had as many."""
    clients = sum(min(scenario.federation.clients, draw.victims) for draw in scenario.draws)
    return comparisons_for(clients * scenario.data.examples)
