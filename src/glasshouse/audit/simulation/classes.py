"""Roles by class and domain, built from the scenario, and the tensors that class metrics compare with."""

import torch
from torch import Tensor

from glasshouse.data.base import DataSource
from glasshouse.data.domains import hidden_rows
from glasshouse.data.private_domain import ClassRoles, ClassWant, Shift, deal_classes
from glasshouse.data.sources import load as load_source
from glasshouse.data.splits import Roles
from glasshouse.interfaces import traits_of
from glasshouse.registry import create, load
from glasshouse.rng import Rng
from glasshouse.scenario.spec import Scenario
from glasshouse.tensors import class_means
from glasshouse.wire import Batch

UNKNOWN = -1


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


def as_roles(domain_roles: ClassRoles) -> Roles:
    """Convert roles by class to roles of images."""
    return Roles(
        private=domain_roles.private, public=domain_roles.public, heldout=domain_roles.heldout, duplicates={}
    )


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
