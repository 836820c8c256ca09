"""Federated logistic regression by Newton's method: every site sends two sums, the server solves and steps.

Source: NVIDIA FLARE, hello-lr (Newton–Raphson; gradient and Hessian of each site as sums, in clear), read in
2026.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
from torch import Tensor

from glasshouse.federation.protocols.documents.base import as_agreed, broadcast, check, send, table_of
from glasshouse.federation.setting import Setting
from glasshouse.formats.base import read_document
from glasshouse.formats.carried import NAME, tensor_of
from glasshouse.formats.records import Newton
from glasshouse.formats.tabular import document_of
from glasshouse.interfaces import Recorder, Tamper, Traits
from glasshouse.limits import Positive
from glasshouse.modalities.row import Row
from glasshouse.progress import track
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Batch


@final
@dataclass(frozen=True, kw_only=True)
class NewtonProtocol:
    """Its fields are public settings, which are read from ``Terms.options``.

    Args:
        damping: of the server's step.
        ridge: added to the Hessian's diagonal, since one-hot columns add up to the intercept.
        rows: what no sum shows of them: ``plain``, each counts once, as in simulations; ``unknown``, then
            nothing is proved.
    """

    card: ClassVar[Card] = Card(
        summary="logistic regression: each site sends gradient and Hessian as sums, the server steps",
        source="NVIDIA FLARE, hello-lr",
    )
    traits: ClassVar[Traits] = Traits(
        sends="document",
        advice="let only the sum over all sites be seen, or wait until a site has more rows than columns",
    )

    damping: Positive = 0.8
    ridge: Positive = 1.0
    rows: Literal["plain", "unknown"] = "plain"

    def passes(self, rounds: int) -> int:
        """Number of passes over a client's private data in a run: one per round."""
        return rounds

    def play(
        self, setting: Setting, *, recorder: Recorder, rng: Rng, tamper: Tamper | None = None
    ) -> dict[str, Tensor]:
        """Run all rounds from coefficients of 0. See ``FederationProtocol.play``.

        Raises:
            BadValue: another model than coefficients, no table, or settings that documents do not have.
        """
        del rng
        check(setting, tamper, model="coefficients")
        how = as_agreed(self, setting.terms.options)
        size = table_of(setting).shape[0] + 1
        theta, nothing = np.zeros(size), np.zeros((size, size))
        for number in track(range(setting.rounds), "federation", total=setting.rounds):
            model = document_of(Newton(theta=theta, gradient=nothing[0], hessian=nothing))
            broadcast(setting, number, model, recorder)
            gradient, hessian = nothing[0].copy(), nothing.copy()
            for client in range(setting.terms.clients):
                sent = send(
                    setting, number, client, document_of(sums_at(theta, setting.shard(client))), recorder
                )
                # The server steps by what arrived, after the client's defences.
                got = read_document(sent)[1]
                assert isinstance(got, Newton)
                gradient, hessian = gradient + got.gradient, hessian + got.hessian
            theta = theta + how.damping * np.linalg.solve(hessian + how.ridge * np.eye(size), gradient)
        model = document_of(Newton(theta=theta, gradient=nothing[0], hessian=nothing))
        return {**setting.start, NAME: tensor_of(model, setting.start[NAME].numel())}


def sums_at(theta: np.ndarray, rows: Batch) -> Newton:
    """Xᵀ(y − p) and Xᵀ diag(p (1 − p)) X of rows with a 1 before them, in float64."""
    inputs = np.concatenate([np.ones((len(rows), 1)), rows.inputs.double().numpy()], 1)
    p = 1 / (1 + np.exp(-inputs @ theta))
    hessian = inputs.T @ (inputs * (p * (1 - p))[:, None])
    return Newton(
        theta=theta, gradient=inputs.T @ (rows.labels.numpy() - p), hessian=(hessian + hessian.T) / 2
    )


def as_encoded(sums: Newton, table: Row) -> Newton:
    """Sums over rows of plain numbers, as sums over the same rows as ``table`` encodes them.

    Every entry is (number − low) / (high − low), so that x̃ becomes A x̃: A g, A H Aᵀ, and A⁻ᵀ θ, by which all
    margins stay what they were.

    Args:
        sums: of rows with one number a column, D of them with the intercept.
        table: of D − 1 columns, none of which takes more than one entry.
    """
    low = np.array([column.low for column in table.columns])
    width = np.array([column.high - column.low for column in table.columns])
    change = np.diag(np.concatenate([[1.0], 1 / width]))
    change[1:, 0] = -low / width
    hessian = change @ sums.hessian @ change.T
    return Newton(
        theta=np.linalg.solve(change.T, sums.theta).astype(np.float64),
        gradient=change @ sums.gradient,
        hessian=(hessian + hessian.T) / 2,
    )
