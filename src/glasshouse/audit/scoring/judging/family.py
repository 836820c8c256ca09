"""Which metrics judge an attack; p-values corrected over a run; undefended references of findings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, final

from glasshouse.attacks.base import Claim
from glasshouse.audit.scoring.pair import can_score
from glasshouse.metrics.base import Metric
from glasshouse.metrics.statistics.multiplicity import holm
from glasshouse.results.records import Finding, Reference, Victim


@final
@dataclass(frozen=True, kw_only=True)
class Judged:
    """A metric by which an attack is judged: its label, the kind of claims, and whether it decides.

    ``alone``: no attack of another kind makes such claims; ``singles``: verdicts on single victims, by the
    metric that judges them.
    """

    name: str
    metric: Metric
    claim: str
    primary: bool
    alone: bool
    singles: tuple[Victim, ...] = ()


def judges_of(metrics: Mapping[str, Metric], kinds: Sequence[type[Claim]], *, alone: bool) -> list[Judged]:
    """The metrics that score some kind of claim, each with the kind: its own, or the first that it can score.

    The metric that judges single examples comes first: what it says of them holds for all others.
    """
    primary = primary_metrics(metrics, kinds)
    judges = []
    for name in sorted(metrics, key=lambda name: name not in primary.values()):
        metric = metrics[name]
        scored = [kind.kind for kind in kinds if can_score(kind, metric)]
        if scored:
            claim = metric.claim if metric.claim in scored else scored[0]
            decides = name in primary.values()
            judges.append(Judged(name=name, metric=metric, claim=claim, primary=decides, alone=alone))
    return judges


def primary_metrics(metrics: Mapping[str, Metric], kinds: Sequence[type[Claim]]) -> dict[str, str]:
    """The metric by which an attack is judged, for each kind of claim: the first that scores the kind.

    Sorted by the order that metrics declare, then by that of the scenario. Metrics that name the kind come
    before those that only read a part of it. Metrics of data that are not private are used only if there is
    no other. Nothing here depends on a score.
    """
    primary = {}
    for kind in kinds:
        able = [name for name, metric in metrics.items() if can_score(kind, metric)]
        own = [name for name in able if metrics[name].claim == kind.kind]
        if able:
            primary[kind.kind] = min(own or able, key=lambda name: metrics[name].wording.order)
    private = {kind: name for kind, name in primary.items() if metrics[name].wording.private}
    return private or primary


def with_family(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """All findings of a run with adjusted p-values (over the primary findings) and undefended references."""
    primary = [i for i, f in enumerate(findings) if f.primary and f.p is not None]
    adjusted = dict(zip(primary, holm([findings[i].p or 0.0 for i in primary]), strict=True))
    undefended = {_key(f): f for f in findings if not f.defenses}
    return tuple(
        replace(
            f,
            p_adjusted=float(adjusted[i]) if i in adjusted else None,
            undefended=_reference(undefended.get(_key(f))) if f.defenses else None,
        )
        for i, f in enumerate(findings)
    )


def _key(finding: Finding) -> tuple[Any, ...]:
    """A key that is equal for findings that differ only in their defences."""
    axes = tuple(sorted((k, repr(v)) for k, v in finding.axes.items() if k.split(".")[0] != "defenses"))
    return finding.scenario, finding.attack, finding.metric, finding.claim, axes


def _reference(finding: Finding | None) -> Reference | None:
    if finding is None:
        return None
    return Reference(**{field.name: getattr(finding, field.name) for field in fields(Reference)})
