"""Double span: rows of a table, exactly and certified, from the gradient of a first linear layer.

The layer's gradient is G = Σ δ_i x_iᵀ. Every row x_i lies in the row space of G, and a row with categories
is nearly determined by that: each category has exactly one 1 (:mod:`.affine`). Every backward signal δ_i
lies in the column space of G, and the server can compute the signal of a candidate itself: so the directions
D of all signals are found (:mod:`.directions`). They give the rows, D⁺ G, up to float32, and with the bias
how many rows each holds. The read-outs certify themselves: a category that is not a 1 among 0s shows the
error of all entries, and whatever is not a valid row with its own signal, once, is not certified.

Rows whose signals have one direction leave only their sum: the others are certified nevertheless, where the
numbers of rows add up or no other numbers of rows of either label have the same signal (:func:`is_alone`).

Source: the span of rows is used for tokens by Petrov et al. 2024, DAGER, arXiv:2405.15586, rows from
directions by Dimitrov et al. 2024, SPEAR, arXiv:2403.03945; the search by categories and the certificate of a
table are our own.

Breaks when: the batch is larger than the layer, or than the number of independent entries of its rows;
noise on the update lies above the smallest singular value. Then nothing is claimed.

Shape letters: B rows behind the update, M directions, F entries of a row, O units of the layer, K classes.
"""

from dataclasses import dataclass
from itertools import product
from typing import ClassVar, Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.attacks.base import Claim, Needs, Reconstruction
from glasshouse.attacks.inversion.linear_input import find_first_linear, first_linear
from glasshouse.attacks.parts.local_steps import LINEAR, update_needs
from glasshouse.attacks.parts.replica import Replica, replica
from glasshouse.attacks.rows.affine import nearest_entries
from glasshouse.attacks.rows.directions import directions_in
from glasshouse.attacks.rows.signals import Signals
from glasshouse.attacks.tabular import Certainty, CertifiedRows
from glasshouse.errors import Inapplicable
from glasshouse.interfaces import task_of
from glasshouse.modalities.row import Row
from glasshouse.models.build import build
from glasshouse.registry import Card, Offer
from glasshouse.rng import Rng
from glasshouse.tasks.base import LabelSignal
from glasshouse.transcript.view import View
from glasshouse.wire import Architecture

Floats = NDArray[np.float64]
SUBJECT: Final = "attack 'double_span'"
SPAN: Final = 3e-6
"""Singular values above this share of the largest one are signal, in a gradient of float32."""
SURE: Final = 1e-4
"""Distance from a valid row up to which a read-out is certified; float32 leaves 1e-6."""
NEAR: Final = 0.02
"""Distance of its categories from a 1 among 0s up to which a read-out is claimed at all."""
WHOLE: Final = 0.01
"""Distance of a multiplicity from a whole number up to which it is one."""
SPREAD: Final = 0.2
"""Share by which rows of one direction may differ in their probability beyond the corners of all numbers."""
REFINED: Final = 3
"""Times that directions are computed anew at the rows that were read."""


@final
@dataclass(frozen=True, kw_only=True)
class DoubleSpan:
    """Rows by the row space, certified by the column space.

    Args:
        affine: residual up to which a category's equations count as met; 0.02 suits float32.
    """

    card: ClassVar[Card] = Card(
        title="Double span",
        summary="rows of a table exactly, with a certificate, from a first linear layer",
        source="our own; the span as in DAGER, arXiv:2405.15586, and SPEAR, arXiv:2403.03945",
        claims=("reconstruction", "certified_rows"),
        threat="server, sees single updates",
        control={
            "setting": "a network of two hidden layers, batches of 4 rows of a made-up clinic, no defence",
            "scenario": {
                "data": {"source": "clinic", "examples": 4},
                "model": {"name": "mlp"},
                "federation": {"batch_size": 4},
            },
            "metric": "rows_certified",
        },
        offers=(Offer(strength=0.9, seconds=1),),
    )
    needs: ClassVar[Needs] = update_needs(
        LINEAR, repeats=False, modalities=frozenset({"row"}), one_label=True
    )
    budget: ClassVar[None] = None

    affine: float = 2e-2

    def check_model(self, architecture: Architecture) -> None:
        """Refuse models whose first layer is not linear with a bias."""
        find_first_linear(build(architecture), architecture.input_shape, subject=SUBJECT)

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """Recover the batch, or as much of it as is certain; confidence is the multiplicity.

        Raises:
            Inapplicable: no table, or a first layer that is not linear.
        """
        client = replica(view, subject=SUBJECT)
        table = client.inputs
        if not isinstance(table, Row):
            raise Inapplicable(SUBJECT, needs="rows of a table", got=table.nouns, fix="use spear or dager")
        if client.terms.architecture.task.signal != LabelSignal():
            raise Inapplicable(
                SUBJECT,
                needs="plain cross-entropy: a row's gradients under all labels, weighted by p, add up to 0",
                got=repr(client.terms.architecture.task),
                fix="use linear_input or spear, which read rows under any loss",
            )
        if client.uses_batch_statistics:
            raise Inapplicable(
                SUBJECT,
                needs="a network in which no row influences another, as it takes rows one by one",
                got="statistics of the batch in the mode in which clients train",
                fix="use spear or tableak, or train in mode evaluation",
            )
        draws = np.random.default_rng(rng.child("numbers").seed())
        found = read_rows(client, table, affine=self.affine, draws=draws)
        inputs = torch.from_numpy(np.repeat(found.rows, found.counts, 0)).float()
        inputs = table.project(inputs) if len(inputs) else inputs
        labels = torch.from_numpy(np.repeat(found.labels, found.counts))
        proved = torch.from_numpy(np.repeat(found.proved, found.counts))
        levels = torch.where(proved, float(Certainty.PROVED), float(Certainty.GUESSED))
        return (
            Reconstruction(about=client.about, inputs=inputs, labels=labels, confidence=levels),
            CertifiedRows(about=client.about, inputs=inputs[proved], certainty=levels[proved]),
        )


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """What a gradient says of its rows, one entry per direction.

    Attributes:
        rows: a row, or the mean of those of one direction, (M, F).
        labels: (M,) int64.
        counts: rows of this direction, (M,) int64.
        proved: it is one row and no other, (M,).
    """

    rows: Floats
    labels: NDArray[np.int64]
    counts: NDArray[np.int64]
    proved: NDArray[np.bool_]

    @classmethod
    def nothing(cls, width: int) -> "Found":
        """No direction."""
        none = np.zeros(0, dtype=np.int64)
        return cls(rows=np.zeros((0, width)), labels=none, counts=none, proved=none.astype(np.bool_))


def raw_gradient(client: Replica, name: str) -> Floats:
    """The gradient of a first layer by its weights, for examples that are not normalised, (O, F)."""
    gradient = client.gradient()
    weight, bias = (gradient[f"{name}.{part}"].double().cpu() for part in ("weight", "bias"))
    scale, shift = (part.double().cpu().reshape(1, -1) for part in (client.scale, client.shift))
    return np.asarray((weight * scale + bias[:, None] * shift).numpy())


def read_rows(client: Replica, table: Row, *, affine: float, draws: np.random.Generator) -> Found:
    """The directions of a gradient, the rows behind each, and which of these are proved."""
    first = first_linear(client, subject=SUBJECT)
    weight = raw_gradient(client, first)
    bias = client.gradient()[f"{first}.bias"].double().cpu().numpy()
    values = np.linalg.svd(weight, compute_uv=False)
    rank = min(client.images, int((values > SPAN * values[0]).sum()))
    signals = signals_of(client, first)
    directions = directions_in(weight, rank, table, signals, tolerance=affine, draws=draws)
    if not directions.shape[1]:
        return Found.nothing(table.shape[0])
    labels, sizes = np.zeros(0, dtype=np.int64), np.zeros(0)
    for _ in range(REFINED):
        # Of numbers that were guessed, a unit may be on the wrong side: at the row itself none is.
        rows, totals = read_out(directions, weight, bias)
        each = signals(rows)  # (K, M, O)
        labels = (totals * np.einsum("kmo,om->km", each, directions)).argmax(0)
        own = each[labels, np.arange(len(rows))]
        sizes = np.maximum(np.linalg.norm(own, axis=1), 1e-300)
        directions = own.T / sizes
    rows, totals = read_out(directions, weight, bias)
    times = client.images * totals / sizes
    counts = np.round(times).astype(np.int64)
    whole = (counts >= 1) & (np.abs(times - counts) <= WHOLE)
    names, entries = distances(rows, table)
    good = whole & (names <= NEAR)
    sure = good & (entries <= limit_of(table)) & (counts == 1)
    if not (len(rows) == client.images or counts[good].sum() == client.images):
        sure &= _alone(client, rows, labels, sure, table)
    return Found(rows=rows[good], labels=labels[good], counts=counts[good], proved=sure[good])


def read_out(directions: Floats, weight: Floats, bias: Floats) -> tuple[Floats, Floats]:
    """The weighted mean of the rows behind each direction (M, F), and the sum of their weights, (M,)."""
    inverse = np.linalg.pinv(directions)
    totals = inverse @ bias
    safe = np.where(np.abs(totals) > 1e-300, totals, 1e-300)
    return (inverse @ weight) / safe[:, None], totals


def distances(rows: Floats, table: Row) -> tuple[Floats, Floats]:
    """How far categories are from a 1 among 0s, and all entries from a valid row, at most, each (M,)."""
    names, every = np.zeros(len(rows)), np.zeros(len(rows))
    for column, place in table.places():
        part = rows[:, place]
        apart = np.abs(part - nearest_entries(part, column)).max(1)
        every = np.maximum(every, apart)
        if not column.numeric:
            names = np.maximum(names, apart)
    return names, every


def limit_of(table: Row) -> float:
    """The distance from a valid row up to which a number is right within its tolerance."""
    own = (c.tolerance / (c.high - c.low) for c in table.columns if c.numeric and c.tolerance > 0)
    return min((SURE, *(share / 2 for share in own)))


def signals_of(client: Replica, first: str) -> Signals:
    """The backward signals of rows at a layer, under every label."""
    model, key = client.trained, f"{first}.bias"
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    task, device = task_of(model), client.scale.device

    def loss(bias: Tensor, row: Tensor, target: Tensor) -> Tensor:
        outputs = torch.func.functional_call(model, {**parameters, key: bias}, (row[None],))
        return task.loss(outputs, target, row[None])

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, None))

    def signals(points: Floats) -> Floats:
        rows = torch.from_numpy(points).float().to(device)
        labels = torch.arange(client.classes, device=device)[:, None]
        return np.stack([each(parameters[key], rows, label).double().cpu().numpy() for label in labels])

    return signals


def _alone(
    client: Replica, rows: Floats, labels: NDArray[np.int64], sure: NDArray[np.bool_], table: Row
) -> NDArray[np.bool_]:
    """Which read-outs cannot be several rows, where the numbers of rows do not add up, (M,)."""
    alone = np.zeros(len(rows), dtype=np.bool_)
    if client.classes != 2:
        return alone
    entries = [place.start for column, place in table.places() if column.numeric]
    corners = np.array(list(product((0.0, 1.0), repeat=min(len(entries), 10))))
    for m in np.flatnonzero(sure):
        others = np.repeat(rows[m][None], len(corners) + 1, 0)
        others[1:, entries[:10]] = corners
        with torch.no_grad():
            inputs = torch.from_numpy(others).float().to(client.scale.device)
            p = client.trained(inputs).double().softmax(1)[:, 1].cpu().numpy()
        between = float(p.min()) * (1 - SPREAD), float(p.max()) * (1 + SPREAD)
        alone[m] = is_alone(float(p[0]), int(labels[m]), between, client.images - len(rows) + 1)
    return alone


def is_alone(p: float, label: int, between: tuple[float, float], most: int) -> bool:
    """Whether no 2 to ``most`` rows of one direction have the signal of one row of probability p and a label.

    A row of label y counts p - y in its direction; the others' probabilities are only known to be ``between``
    two numbers.

    Examples:
        >>> is_alone(0.4, 0, (0.38, 0.42), 2)  # two rows count some 0.8, -0.2 or -1.2
        True
        >>> is_alone(0.49, 0, (0.45, 0.52), 3)  # two of label 0 and one of label 1 may count 0.49
        False
    """
    low, high = between
    return not any(
        rows * low - ones <= p - label <= rows * high - ones
        for rows in range(2, most + 1)
        for ones in range(rows + 1)
    )
