"""What attacks that ask who holds a known row share: needs, control, and one score for each client."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from glasshouse.attacks.base import About, ClientScores, Needs
from glasshouse.attacks.parts.documents import check_first, read_update
from glasshouse.formats.records import TreeEnsemble
from glasshouse.transcript.view import View
from glasshouse.wire import Update, Value


def needs_row(protocols: frozenset[str]) -> Needs:
    """Every client's document, the row, and public rows."""
    return Needs(
        sees=frozenset({"broadcast", "update"}),
        scope="run",
        grants=frozenset({"challenge", "auxiliary"}),
        protocols=protocols,
        modalities=frozenset({"row"}),
    )


def half_hold_it(setting: str, protocol: str, options: Mapping[str, Value]) -> dict[str, Any]:
    """The control: 12 of 24 clients of a made-up clinic hold the row, among 30 each."""
    return {
        "setting": f"{setting} on 30 rows of a made-up clinic, 12 of 24 clients hold the row",
        "scenario": {
            "data": {"source": "clinic", "examples": 30, "members": 12, "auxiliary": 1000},
            "model": {"name": "boosted_trees"},
            "federation": {
                "protocol": protocol,
                "clients": 24,
                "batch_size": 30,
                "options": dict(options),
            },
            "grants": {"challenge": True},
            "audit": {"victims": 24},
        },
        "metric": "auc",
    }


def score_clients(
    view: View, score: Callable[[TreeEnsemble, Update], float], *, nobody: float, subject: str
) -> ClientScores:
    """The score of every client's first trees; above 0 it is called a member.

    ``nobody``: that of clients that sent nothing.

    Raises:
        Inapplicable: a client's document is no trees boosted from nothing, or as ``score``.
    """
    first = view.rounds[0]
    scores = torch.full((view.terms.clients,), nobody)
    for client, update in first.updates.items():
        got = read_update(first.received_by(client), update, subject=subject)
        scores[client] = score(check_first(got, view, subject=subject), update)
    return ClientScores(about=About(rounds=(first.round,)), scores=scores, decisions=scores > 0)
