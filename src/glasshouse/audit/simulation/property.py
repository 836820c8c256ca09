"""Which clients have the property under audit: made true here, and told to nobody but the judge."""

import dataclasses

import torch

from glasshouse.errors import BadValue
from glasshouse.federation.setting import Setting
from glasshouse.rng import Rng
from glasshouse.scenario.spec import Scenario
from glasshouse.wire import Batch

Marked = dict[str, tuple[int, ...]]


def with_members(setting: Setting, members: int, *, rng: Rng) -> tuple[Setting, Batch | None, Marked]:
    """Give one client's example to others too, each in place of one of theirs.

    Returns:
        The setting, the example in question (None without members), and who holds it.

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


def holders(scenario: Scenario, setting: Setting) -> Marked:
    """For every attack on ``attribute``: the clients with more than half of their data in its class."""
    rows_by_client: Marked = {}
    for attack in scenario.attacks:
        if attack.arguments.get("looks_for") == "attribute":
            label = int(attack.arguments.get("settings", {}).get("label", 0))
            shares = [(setting.private.labels[rows] == label).double().mean() for rows in setting.shards]
            rows_by_client[f"attribute {label}"] = tuple(c for c, share in enumerate(shares) if share > 0.5)
    return rows_by_client
