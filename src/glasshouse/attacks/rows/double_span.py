"""Double span: rows of a table, exactly and certified, from the gradient of a first linear layer.

The layer's gradient is G = Σ δ_i x_iᵀ. Every row x_i lies in the row space of G, and a row with categories
is nearly determined by that: each category has exactly one 1 (:mod:`.onehot`). Every backward signal δ_i
lies in the column space of G, and the server can compute the signal of a candidate itself: this is the
certificate. Last, non-negative least squares on the whole gradient give labels and multiplicities, whole
numbers if all is right. Rows whose signals have one direction leave only their sum, so that a batch is
certified whole or not at all.

Source: the span of rows is used for tokens by Petrov et al. 2024, DAGER, arXiv:2405.15586, and low rank by
Dimitrov et al. 2024, SPEAR, arXiv:2403.03945; the search by categories and the certificate of a table are
our own.

Breaks when: the batch is larger than the layer, or than the number of independent entries of a one-hot row;
noise on the update lies above the smallest singular value. Then nothing is claimed.

Shape letters: B rows behind the update, R candidates, F entries of a row, O units of the layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor

from glasshouse.attacks.base import Claim, Needs, Reconstruction
from glasshouse.attacks.inversion.linear_input import find_first_linear, first_linear
from glasshouse.attacks.parts.local_steps import LINEAR, update_needs
from glasshouse.attacks.parts.replica import Replica, replica
from glasshouse.attacks.rows.onehot import SPAN, basis_of, rows_in
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
INSIDE: Final = 1e-3
"""Share of a backward signal outside the column space up to which a candidate stays; float32 leaves 1e-6."""
WHOLE: Final = 0.15
"""Distance of a multiplicity from a whole number, of at least 1, up to which a row is certified."""
NULL: Final = 1e-9
"""Share of the largest eigenvalue of the atoms' Gram matrix below which they depend on one another."""
FREE: Final = 1e-2
"""Share of a null vector on a candidate from which its multiplicity is not determined."""
CANDIDATES: Final = 2000
"""Candidates beyond which the search has found a continuum, not rows."""


@final
@dataclass(frozen=True, kw_only=True)
class DoubleSpan:
    """Rows by the row space, certified by the column space. No iterations and no randomness.

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
        del rng
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
        weight = raw_gradient(client, first_linear(client, subject=SUBJECT))
        found = read_rows(client, weight, table, affine=self.affine)
        inputs = torch.from_numpy(np.repeat(found.rows, found.counts, 0)).float()
        labels = torch.from_numpy(np.repeat(found.labels, found.counts))
        inputs = table.project(inputs) if len(inputs) else inputs
        # Twice a row may also be two rows with this mean: it is claimed, and not certified.
        once = torch.from_numpy(np.repeat(found.counts, found.counts) == 1)
        levels = torch.where(once, float(Certainty.PROVED), float(Certainty.GUESSED))
        return (
            Reconstruction(about=client.about, inputs=inputs, labels=labels, confidence=levels),
            CertifiedRows(about=client.about, inputs=inputs[once], certainty=levels[once]),
        )


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """Certified rows.

    Attributes:
        rows: (R, F).
        labels: (R,) int64.
        counts: how often each occurs, (R,) int64.
    """

    rows: Floats
    labels: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def nothing(cls, width: int) -> "Found":
        """No row."""
        none = np.zeros(0, dtype=np.int64)
        return cls(rows=np.zeros((0, width)), labels=none, counts=none)


def raw_gradient(client: Replica, name: str) -> Floats:
    """The gradient of a first layer by its weights, for examples that are not normalised, (O, F)."""
    gradient = client.gradient()
    weight, bias = (gradient[f"{name}.{part}"].double().cpu() for part in ("weight", "bias"))
    scale, shift = (part.double().cpu().reshape(1, -1) for part in (client.scale, client.shift))
    return np.asarray((weight * scale + bias[:, None] * shift).numpy())


def read_rows(client: Replica, weight: Floats, table: Row, *, affine: float) -> Found:
    """Candidates by the row space, those whose signal is in the column space, and their multiplicities."""
    basis = basis_of(weight, client.images)
    spanned = rows_in(basis, table, tolerance=affine)
    if not spanned.finished or not 0 < len(spanned.rows) <= CANDIDATES:
        return Found.nothing(table.shape[0])
    rows = torch.from_numpy(spanned.rows).float().to(client.scale.device)
    classes = client.classes
    signals = [signals_of(client, rows, label) for label in range(classes)]
    left, values, _ = np.linalg.svd(weight, full_matrices=False)
    span = left[:, values > SPAN * values[0]]
    first = first_linear(client, subject=SUBJECT)
    outside = np.stack([_outside(s[f"{first}.bias"], span) for s in signals])
    kept = np.flatnonzero(outside.min(0) < INSIDE)
    if not len(kept):
        return Found.nothing(table.shape[0])
    atoms = [np.concatenate([_flat(s, i) for s in signals]) for i in kept.tolist()]
    target = _flat({name: t[None].double() for name, t in client.gradient().items()}, 0)[0]
    weights, _ = nnls(np.concatenate(atoms).T, target * client.images)
    times = weights.reshape(len(kept), classes)
    # Gradients of a row under all labels, weighted by its probabilities p, add up to 0: p itself is free.
    with torch.no_grad():
        p = client.model(rows[kept]).cpu().double().softmax(1).numpy()
    times = times - p * (times / p).min(1, keepdims=True)
    counts = np.round(times)
    sure = (counts >= 1) & (np.abs(times - counts) <= WHOLE) & determined_by(atoms, classes)[:, None]
    at, labels = np.nonzero(sure)
    # Rows whose signals have one direction are one row of the sum: only all n rows together are a proof.
    if abs(float(times.sum()) - client.images) > WHOLE:
        return Found.nothing(table.shape[0])
    return Found(
        rows=spanned.rows[kept[at]], labels=labels.astype(np.int64), counts=counts[sure].astype(np.int64)
    )


def determined_by(atoms: Sequence[Floats], classes: int) -> NDArray[np.bool_]:
    """Which candidates' multiplicities the gradient determines, (R,), from their gradients (K, P) each.

    Rows that differ in numbers alone may have backward signals of one direction; then the gradient holds only
    their sum, and any valid rows with this sum fit. Such candidates stand in a null vector of all atoms. The
    last label is left out: its atom is a combination of the others.
    """
    free = np.concatenate([atom[: classes - 1] for atom in atoms])
    free = free / np.maximum(np.linalg.norm(free, axis=1, keepdims=True), 1e-300)
    values, vectors = np.linalg.eigh(free @ free.T)
    null = vectors[:, values < NULL * values[-1]]
    weight = np.linalg.norm(null, axis=1).reshape(len(atoms), classes - 1).max(1)
    return np.asarray(weight < FREE)


def signals_of(client: Replica, rows: Tensor, label: int) -> dict[str, Tensor]:
    """The gradient of each row's own loss under a label, by parameter name, (R, ...)."""
    model = client.model
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    task, target = task_of(model), torch.full((1,), label, device=rows.device)

    def loss(values: dict[str, Tensor], row: Tensor) -> Tensor:
        outputs = torch.func.functional_call(model, values, (row[None],))
        return task.loss(outputs, target, row[None])

    each: dict[str, Tensor] = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, rows)
    return each


def _outside(signals: Tensor, span: Floats) -> Floats:
    """Share of each signal (R, O) that lies outside a span (O, r); 1 for a signal of zeros."""
    vectors = signals.cpu().double().numpy()
    size = np.linalg.norm(vectors, axis=1)
    rest = np.linalg.norm(vectors - vectors @ span @ span.T, axis=1)
    return np.where(size > 0, rest / np.maximum(size, 1e-300), 1.0)


def _flat(tensors: dict[str, Tensor], index: int) -> Floats:
    """All tensors of one row as one vector, in order of their names, (1, P)."""
    parts = [tensors[name][index].cpu().double().reshape(-1) for name in sorted(tensors)]
    return np.asarray(torch.cat(parts).numpy()[None])
