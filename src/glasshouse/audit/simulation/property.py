"""Assign the property under audit to clients; only the judge knows which clients have it."""

import dataclasses

import torch
from torch import Tensor

from glasshouse.attacks.data_property import AsksDataProperty, DataProperty
from glasshouse.audit.attacking.needs import attack_of
from glasshouse.errors import BadValue
from glasshouse.federation.setting import Setting
from glasshouse.rng import Rng
from glasshouse.scenario.spec import Scenario
from glasshouse.wire import Batch

Marked = dict[str, tuple[int, ...]]


def with_members(setting: Setting, members: int, *, rng: Rng) -> tuple[Setting, Batch | None, Marked]:
    """Copy one client's example to other clients, replacing one of theirs each.

    Returns:
        The setting, the copied example (None without members), and the clients that have it.

    Raises:
        BadValue: more members than clients.
    """
    if members == 0:
        return setting, None, {}
    shards = list(setting.shards)
    if members > len(shards):
        raise BadValue(
            "members of the challenge",
            needs=f"at most {len(shards)} clients",
            got=str(members),
            fix="lower data.members",
        )
    members_of = torch.randperm(len(shards), generator=rng.child("who").torch())[:members].tolist()
    draws = torch.rand(members, generator=rng.child("place").torch(), dtype=torch.float64).tolist()
    target = shards[members_of[0]][int(draws[0] * len(shards[members_of[0]]))].clone()
    for client, draw in zip(members_of, draws, strict=True):
        rows = shards[client].clone()
        rows[int(draw * len(rows))] = target
        shards[client] = rows
    changed = dataclasses.replace(setting, shards=tuple(shards))
    return changed, setting.private.pick(target[None]), {"membership": tuple(sorted(members_of))}


def data_properties(scenario: Scenario) -> tuple[DataProperty, ...]:
    """The properties of clients' data that attacks infer."""
    attacks = (attack_of(one) for one in scenario.attacks)
    asked = (attack.data_property for attack in attacks if isinstance(attack, AsksDataProperty))
    return tuple(one for one in asked if one is not None)


def holders(scenario: Scenario, setting: Setting) -> Marked:
    """The clients that have each of the :func:`data_properties`."""
    labels = [setting.private.labels[rows] for rows in setting.shards]
    return {
        what.name: tuple(client for client, own in enumerate(labels) if _has(own, what))
        for what in data_properties(scenario)
    }


def _has(labels: Tensor, what: DataProperty) -> bool:
    """Whether a client with examples of these classes (n,) has the property."""
    return float((labels == what.label).double().mean()) > what.above
