"""A package as a stranger would write it: a kind of claim, an attack, a metric and a figure, core untouched.

Shape letters: B images, H rows of an image.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.attacks.base import About, Claim, Needs
from glasshouse.attacks.parts.replica import replica
from glasshouse.errors import Inapplicable
from glasshouse.figures.base import CellEvidence
from glasshouse.limits import Share
from glasshouse.metrics.base import Metric, ScoreContext, Wording
from glasshouse.registry import Card
from glasshouse.results.exhibits import line, lines
from glasshouse.results.records import Exhibit
from glasshouse.rng import Rng
from glasshouse.transcript.view import View
from glasshouse.wire import Batch


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class RowProfiles(Claim):
    """Asserts: The rows of the private images are this bright.

    Attributes:
        rows: (B, H), mean pixel of every row.
    """

    card: ClassVar[Card] = Card(summary="the rows of the private images are this bright")
    kind: ClassVar[str] = "row_profiles"

    rows: Tensor


@final
@dataclass(frozen=True, kw_only=True)
class RowReader:
    """The rows of a single image, from the gradient of a first linear layer.

    Args:
        shrink: how far the claim is drawn to mid-grey.
    """

    card: ClassVar[Card] = Card(
        title="Row reader",
        summary="brightness of the rows of an image, from a first linear layer",
        threat="server, sees single updates",
        control={
            "setting": "an MLP, one digit, no defence",
            "scenario": {"model": {"name": "mlp"}},
            "metric": "row_error",
        },
    )
    needs: ClassVar[Needs] = Needs(sees=frozenset({"broadcast", "update"}), scope="update")
    budget: ClassVar[None] = None

    shrink: Share = 0.0

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        client = replica(view, subject="attack 'row_reader'")
        gradient = client.gradient()
        if client.images != 1 or "features.fc1.weight" not in gradient:
            raise Inapplicable(
                "attack 'row_reader'",
                needs="one example, and a first linear layer 'fc1'",
                got=f"{client.images} examples and {', '.join(sorted(gradient))}",
                fix='set federation.batch_size = 1 and model.name = "mlp"',
            )
        weight, d = gradient["features.fc1.weight"], gradient["features.fc1.bias"]
        image = client.to_pixels((d @ weight / d.dot(d)).reshape(1, *client.shape))
        rows = image.mean((1, 3)) * (1 - self.shrink) + 0.5 * self.shrink
        about = About(rounds=(client.update.round,), client=client.update.client)
        return (RowProfiles(about=about, rows=rows),)


@final
@dataclass(frozen=True, kw_only=True)
class RowError(Metric):
    """Mean absolute error of the claimed rows, per image."""

    card: ClassVar[Card] = Card(
        summary="mean absolute error of the claimed brightness of rows",
    )
    wording: ClassVar[Wording] = Wording(
        label="row error",
        sentence="read the brightness of every row with error {}",
        explanation="How far the claimed rows are from those of the private image: lower is worse.",
        severity="images",
        worse="down",
        chance="that of the mean auxiliary image",
        range=(0.0, 1.0),
    )
    claim: ClassVar[str] = "row_profiles"
    reads: ClassVar[str] = "rows"
    null_name: ClassVar[str] = "rows of the mean public image"

    def null(self, truth: Tensor, auxiliary: Batch | None, *, context: ScoreContext) -> NDArray[np.float64]:
        """Somebody who knows the mean of public images, or nothing."""
        grey = torch.full((1, truth.shape[2]), 0.5)
        mean = grey if auxiliary is None else auxiliary.inputs.mean((0, 1, 3))[None]
        return self.score(mean.expand(len(truth), -1), truth, context=context)

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> NDArray[np.float64]:
        del context
        error = (claimed.clamp(0, 1) - truth.mean((1, 3))).abs().mean(1)
        return np.asarray(error.double().numpy(), dtype=np.float64)


@final
@dataclass(frozen=True, kw_only=True)
class RowChart:
    """Claimed and true rows, the mean over all victims."""

    card: ClassVar[Card] = Card(summary="claimed and true brightness of rows")
    reads: ClassVar[frozenset[type]] = frozenset({RowProfiles})

    def draw(self, cell: CellEvidence) -> Iterator[Exhibit]:
        for attack in cell.attacks:
            pairs = [
                (claim.rows.mean(0), group.truth.batch(claim.about.rounds[0], claim.about.client)[0])
                for group in attack.groups
                for claim in group.of(RowProfiles)
            ]
            if not pairs:
                continue
            claimed = torch.stack([rows for rows, _ in pairs]).mean(0).tolist()
            true = torch.stack([batch.inputs.mean((0, 1, 3)) for _, batch in pairs]).mean(0).tolist()
            places = list(range(len(true)))
            yield lines(
                cell.place,
                "Brightness of the rows",
                "Mean over victims, top row first.",
                labels=("row", "mean pixel"),
                series=[line("private images", places, true, null=True), line(attack.label, places, claimed)],
            )
