"""Exhibits of attacks on clients: F1 against rounds, how features were distributed, how the detectors did."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glasshouse.attacks.base import Appendix, ClientScores
from glasshouse.audit.attacking.claims import Outcome
from glasshouse.audit.scoring.score import Judge, clients_of
from glasshouse.errors import Undefined
from glasshouse.metrics.membership import f1
from glasshouse.results.records import Exhibit
from glasshouse.scenario.axes import Cell

Outcomes = Mapping[str, Sequence[Outcome]]
"""By folder of the group (seed)."""
SHOWN_ROUNDS = 3


def client_exhibits(
    cell: Cell, attacks: Mapping[str, Outcomes], judges: Mapping[str, Judge]
) -> list[Exhibit]:
    """All of them; none where no attack scored clients.

    Args:
        cell: whose. attacks: outcomes by the attack's label. judges: by folder.
    """
    lines = [line for label, every in attacks.items() if (line := _f1_line(label, every, judges))]
    if not lines:
        return []
    where = ", ".join(f"{name.split('.')[-1]} = {value}" for name, value in cell.axes.items())
    suffix = f" ({where})" if where else ""
    name = cell.scenario.name
    prior = _prior(attacks, judges)
    ends = [min(x for line in lines for x in line["x"]), max(x for line in lines for x in line["x"])]
    null = {"name": "coin with the known prior", "x": ends, "y": [prior, prior], "null": True}
    made = [
        Exhibit(
            kind="lines",
            scenario=name,
            title=f"F1 against rounds{suffix}",
            caption="All clients of all seeds together; bands are 95 % intervals.",
            data={"x_label": "rounds", "y_label": "F1", "series": [*lines, null]},
        )
    ]
    reports = [c for every in attacks.values() for o in every.values() for c in _reports(o)]
    made += _detector(reports[0], name, suffix) if reports else []
    return made


def _f1_line(label: str, every: Outcomes, judges: Mapping[str, Judge]) -> dict[str, Any] | None:
    parts: dict[int, list[tuple[NDArray[np.float64], NDArray[np.bool_]]]] = {}
    for folder, outcomes in every.items():
        for claim in (c for o in outcomes for c in o.claims if isinstance(c, ClientScores)):
            truth = clients_of(claim, judges[folder])
            parts.setdefault(len(claim.about.rounds), []).append((claim.decisions.double().numpy(), truth))
    x, found = [], []
    for rounds in sorted(parts):
        runs = np.repeat(np.arange(len(parts[rounds])), [len(t) for _, t in parts[rounds]])
        decisions, truth = (np.concatenate([p[i] for p in parts[rounds]]) for i in (0, 1))
        try:
            found.append(f1(decisions, truth.astype(bool), runs=runs))
        except Undefined:
            continue  # nobody is positive, or called so: no point of the curve
        x.append(rounds)
    if len(x) < 2:
        return None
    return {
        "name": label,
        "x": x,
        "y": [f.value for f in found],
        "low": [f.low for f in found],
        "high": [f.high for f in found],
    }


def _prior(attacks: Mapping[str, Outcomes], judges: Mapping[str, Judge]) -> float:
    shares = [
        clients_of(c, judges[folder]).mean()
        for every in attacks.values()
        for folder, outcomes in every.items()
        for o in outcomes
        for c in o.claims
        if isinstance(c, ClientScores)
    ]
    return float(np.mean(shares))


def _reports(outcomes: Sequence[Outcome]) -> list[Appendix]:
    return [c for o in outcomes for c in o.claims if isinstance(c, Appendix) and c.name == "detectors"]


def _detector(report: Appendix, scenario: str, suffix: str) -> list[Exhibit]:
    rounds = list(report.about.rounds)
    peak = float(report.tensors["norm"].max()) or 1.0
    curves = {
        "accuracy": report.tensors["accuracy"],
        "overlap": report.tensors["overlap"],
        f"norm of the weights ÷ {peak:.3g}": report.tensors["norm"] / peak,
    }
    made = [
        Exhibit(
            kind="lines",
            scenario=scenario,
            title=f"Detectors of the adversary{suffix}",
            caption="On shadow clients that no detector was trained on, first seed.",
            data={
                "x_label": "round",
                "y_label": "share",
                "series": [{"name": n, "x": rounds, "y": t.tolist()} for n, t in curves.items()],
            },
        )
    ]
    for at in np.unique(np.linspace(0, len(rounds) - 1, SHOWN_ROUNDS).astype(int)):
        series = [
            {"name": "without the property", "values": report.tensors["without"][at].tolist()},
            {"name": "with the property", "values": report.tensors["having"][at].tolist()},
        ]
        made.append(
            Exhibit(
                kind="histogram",
                scenario=scenario,
                title=f"Features in round {rounds[at]}{suffix}",
                caption="Held-out shadow clients, first seed; "
                f"overlap {float(report.tensors['overlap'][at]):.2f}.",
                data={"x_label": "linear feature of an update", "series": series},
            )
        )
    return made
