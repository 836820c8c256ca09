"""Runs with exchanged victims, for ``replay --swap``, and the scores on them."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glasshouse.audit.attacking.claims import Outcome, read_outcome
from glasshouse.audit.scoring.claims.truths import rotate_victims
from glasshouse.audit.scoring.federation_judge import judge_of
from glasshouse.audit.scoring.score import score_outcomes
from glasshouse.audit.scoring.tasks import attack_key
from glasshouse.audit.scoring.verdicts.finding import value_of
from glasshouse.errors import BadFile, Undefined
from glasshouse.metrics.base import Metric
from glasshouse.registry import create, load
from glasshouse.rng import Rng
from glasshouse.scenario.load import read_resolved
from glasshouse.truth.record import Truth, read_truth, write_truth


def write_swapped(run: Path, copy: Path) -> Path:
    """Copy ``run`` to ``copy``, exchange the ground truth of every group between victims, return ``copy``.

    Raises:
        BadFile: a group has no ground truth, or only one victim.
    """
    shutil.copytree(run, copy)
    for group in sorted((copy / "cells").glob("*/transcript")):
        folder = group.parent / "truth"
        if not folder.is_dir():
            raise BadFile(
                f"truth of '{group.parent.name}'",
                needs="the truth folder of the run, to exchange it between victims",
                got="no such folder",
                fix="replay without --swap, or get the run with its truth",
            )
        write_truth(swap_victims(read_truth(folder)), folder)
    return copy


def swap_victims(truth: Truth) -> Truth:
    """The ground truth with every victim's examples replaced by the next one's.

    Raises:
        BadFile: there is only one victim.
    """
    if len(truth.used) < 2:
        raise BadFile(
            "exchange of truths",
            needs="at least 2 victims",
            got=str(len(truth.used)),
            fix="replay without --swap, or audit more clients",
        )
    return rotate_victims(truth)


def score_swapped(group: Path, attack: str) -> Mapping[str, Any]:
    """The first defined audited metric, on the true and on exchanged victims; empty: none is defined."""
    scenario = read_resolved(group / "scenario.toml")
    outcomes: list[Outcome] = []
    for position, spec in enumerate(scenario.attacks):
        if spec.name == attack and not outcomes:
            paths = sorted((group / "claims" / attack_key(position, spec)).glob("*/claims.json"))
            outcomes = [read_outcome(path.parent) for path in paths]
    judge = judge_of(group, scenario)
    other = judge.against(swap_victims(judge.truth))
    for plugin in scenario.audit.metrics:
        metric: Metric = create(load("metrics", plugin.name), plugin.arguments)
        try:
            pair = [score_outcomes(plugin.name, metric, outcomes, one) for one in (judge, other)]
            values = [value_of(one, metric, rng=Rng.root(0)).value for one in pair if one is not None]
        except Undefined:
            continue
        if len(values) == 2:
            return {"metric": plugin.name, "true_victims": values[0], "exchanged_victims": values[1]}
    return {}
