"""Two parties of a vertical federation read each other: rows from embeddings, labels from gradients.

Both use the people whom both parties know. The party of the labels fits a ridge regression from the
embeddings of known people to their rows, and applies it to everybody else's. The party of the columns
compares the direction of each gradient with those of known people of either label: before the last layer of
a binary classifier gradients of the two labels point in opposite directions.

Source: Li et al. 2022, "Label leakage and protection in two-party split learning", arXiv:2102.08504 (the
cosine attack; here against known people of both labels). The regression is the textbook's.

Breaks when: nobody is known, or of one label only; noise is above the spread of what is sent; rounding
leaves most gradients zero.

Shape letters: N people, K known ones, E entries of a vector, F entries of a row.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np
import torch

from glasshouse.attacks.base import About, Claim, Needs, Reconstruction
from glasshouse.attacks.parts.documents import needs, received, table_in
from glasshouse.attacks.tabular import RowLabels
from glasshouse.attacks.trees.algebra import Floats, Ints
from glasshouse.errors import Inapplicable
from glasshouse.formats.base import read_document
from glasshouse.formats.carried import bytes_of
from glasshouse.formats.records import Vectors
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

VERTICAL: Final = frozenset({"vertical"})
PENALTIES: Final = (1e-6, 1e-4, 1e-2, 1e-1, 1.0, 10.0, 100.0)
"""Of ridge regression, in units of the embeddings' variance; known people choose, each left out in turn."""
_CONTROL: Final = {
    "data": {"source": "clinic", "examples": 120, "auxiliary": 600},
    "model": {"name": "no_model"},
}


@final
@dataclass(frozen=True, kw_only=True)
class EmbeddingRegression:
    """Rows from embeddings. No iterations, no randomness."""

    card: ClassVar[Card] = Card(
        title="Ridge regression on embeddings",
        summary="rows of a vertical federation's other party, by regression from embeddings of known people",
        source="our own; ridge regression of known people's rows on their embeddings",
        claims=("reconstruction",),
        threat="party of the labels, sees the other's embeddings",
        control={
            "setting": "embeddings of 64 numbers of a made-up clinic's rows, 60 of 80 people known",
            "scenario": {
                **_CONTROL,
                "federation": {
                    "protocol": "vertical",
                    "batch_size": 80,
                    "options": {"known": 60, "width": 64, "hidden": 256},
                },
            },
            "metric": "row_cells",
        },
    )
    needs: ClassVar[Needs] = needs(protocols=VERTICAL)
    budget: ClassVar[None] = None

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """One row per person who is not known, in their order.

        Raises:
            Inapplicable: no embeddings, or fewer than three known people.
        """
        del rng
        subject = "attack 'embedding_regression'"
        about, sent, known, rows, _ = _exchange(view, "embeddings", subject=subject)
        table = table_in(view, subject=subject)
        if known < 3 or rows.shape[1] != table.shape[0]:
            raise Inapplicable(
                subject,
                needs="at least three people whose rows are known",
                got=f"{known}",
                fix="raise federation.options.known",
            )
        guessed = table.project(
            torch.from_numpy(_ridge(sent[:known], rows, sent[known:])).float().clamp(0, 1)
        )
        confidence = torch.ones(len(guessed))
        return (Reconstruction(about=about, inputs=guessed, labels=None, confidence=confidence),)


@final
@dataclass(frozen=True, kw_only=True)
class GradientDirection:
    """Labels from directions. No iterations, no randomness."""

    card: ClassVar[Card] = Card(
        title="Direction of gradients",
        summary="labels of a vertical federation's other party, by the directions of the gradients it sends",
        source="Li et al. 2022, arXiv:2102.08504, section 3",
        claims=("row_labels",),
        threat="party of the columns, sees the gradients for its embeddings",
        control={
            "setting": "gradients for 60 rows of a made-up clinic, 20 people known, no noise",
            "scenario": {
                **_CONTROL,
                "federation": {
                    "protocol": "vertical",
                    "batch_size": 60,
                    "options": {"known": 20, "reads": "gradients"},
                },
            },
            "metric": "row_labels_right",
        },
    )
    needs: ClassVar[Needs] = needs(protocols=VERTICAL)
    budget: ClassVar[None] = None

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """One label per person who is not known, in their order.

        Raises:
            Inapplicable: no gradients, or known people of one label only.
        """
        del rng
        subject = "attack 'gradient_direction'"
        about, sent, known, _, labels = _exchange(view, "gradients", subject=subject)
        if len(np.unique(labels)) < 2:
            raise Inapplicable(
                subject,
                needs="known people of both labels",
                got=f"{known} known people, labels {sorted(set(labels.tolist()))}",
                fix="raise federation.options.known",
            )
        length = np.maximum(np.linalg.norm(sent, axis=1, keepdims=True), 1e-300)
        alike = (sent / length)[known:] @ (sent / length)[:known].T
        closer = alike[:, labels == 1].mean(1) - alike[:, labels == 0].mean(1)
        usual = float(np.mean(labels) > 0.5)  # of a gradient of zeros
        said = np.where(closer == 0, usual, closer > 0).astype(np.int64)
        return (RowLabels(about=about, labels=torch.from_numpy(said)),)


def _exchange(view: View, what: str, *, subject: str) -> tuple[About, Floats, int, Floats, Ints]:
    """What was sent (N, E), how many people of it are known, and their rows (K, F) and labels (K,).

    Raises:
        Inapplicable: another document, or one for another number of people than announced.
    """
    got = received(view, subject=subject)
    broadcast, update = view.single(subject=subject)
    sent = got.document
    rosters = [bytes_of(t) for t in broadcast.tensors.values() if t.dtype == torch.uint8 and bool(t.any())]
    roster = read_document(rosters[0])[1] if len(rosters) == 1 else None
    fits = isinstance(sent, Vectors) and sent.what == what
    if not fits or not isinstance(sent, Vectors) or not isinstance(roster, Vectors) or roster.labels is None:
        raise Inapplicable(
            subject,
            needs=f"{what} of a vertical federation, and the people whom both parties know",
            got=f"a document {got.media}" + (f" of {sent.what}" if isinstance(sent, Vectors) else ""),
            fix=f'set federation.options.reads = "{what}"',
        )
    known = len(roster.labels)
    if len(sent.vectors) != known + update.examples:
        raise Inapplicable(
            subject,
            needs=f"a vector for each of {known} known and {update.examples} other people",
            got=f"{len(sent.vectors)}",
            fix="audit every round on its own",
        )
    return got.about, sent.vectors, known, roster.vectors, roster.labels


def _ridge(seen: Floats, rows: Floats, others: Floats) -> Floats:
    """Rows (K, F) regressed on vectors (K, E), at ``others``; the penalty errs least on people left out.

    Left-out errors follow from one fit: residual / (1 − leverage).
    """
    middle, spread = seen.mean(0), max(float(seen.std()), 1e-12)
    inputs = np.concatenate([(seen - middle) / spread, np.ones((len(seen), 1))], 1)
    best, chosen = np.inf, np.zeros((inputs.shape[1], rows.shape[1]))
    for penalty in PENALTIES:
        weights = np.eye(inputs.shape[1]) * penalty * len(seen)
        weights[-1, -1] = 1e-9  # the mean is free
        inverse = np.linalg.solve(inputs.T @ inputs + weights, inputs.T)
        leverage = np.clip(np.einsum("ij,ji->i", inputs, inverse), 0, 1 - 1e-6)
        error = float((((rows - inputs @ (inverse @ rows)) / (1 - leverage)[:, None]) ** 2).mean())
        if error < best:
            best, chosen = error, inverse @ rows
    asked = np.concatenate([(others - middle) / spread, np.ones((len(others), 1))], 1)
    return np.asarray(asked @ chosen)
