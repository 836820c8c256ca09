"""TabLeak: rows of a table by matching the gradient, with categories relaxed to their simplex.

Numbers are a sigmoid of a free variable over the schema's range, each category a softmax, so that every point
of the search is nearly a row. Several members start anew; each minimises one minus the cosine of its gradient
and the client's, both whitened (:mod:`.whitened`), by Adam on the sign of the slope, in steps that shrink to
0. The member of least loss is claimed, or the pool: members are aligned row by row with the best one, and the
median of each entry is decoded.

Source: Vero et al. 2023, "TabLeak: Tabular Data Leakage in Federated Learning", ICML, sections 4.1 to 4.3.
Where we differ: gradients are whitened and steps shrink, as members else stop at losses far above that of the
rows; the members of least loss are then improved cell by cell (:mod:`.swaps`), where most of them reach it;
the best one is the default, since pooling lost at batches of 8 in our measurement; labels are inferred, not
given; a row's confidence is the agreement of the members.

Breaks when: the batch is large (it is then no better than public rows), or several local steps were taken.

Shape letters: M members, B rows, F entries of a row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final, final

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from glasshouse.attacks.base import About, Claim, Needs, Reconstruction
from glasshouse.attacks.budget import MATCHING, Budget
from glasshouse.attacks.objective import SearchedLoss, record_loss
from glasshouse.attacks.parts.labels import known_labels
from glasshouse.attacks.parts.local_steps import LINEAR, update_needs
from glasshouse.attacks.parts.replica import Replica, replica
from glasshouse.attacks.rows.swaps import improve
from glasshouse.attacks.rows.whitened import Whitened
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.interfaces import task_of
from glasshouse.modalities.row import Row
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.transcript.view import View

SUBJECT: Final = "attack 'tableak'"
NOISE: Final = 1e-4
"""Distances of two gradients that differ by less are equal: rows decoded to float32."""

FIRST: Final = 10.0
"""How much larger the floor is at first: small directions mislead rows that are far from the true ones."""
PASS: Final = 400
"""Iterations of one member that a pass over 8 rows costs, measured on census rows."""
ROWS: Final = 8
"""Rows up to which as many passes are made as are asked for."""
STAGES: Final = 6
"""Floors on the way."""


@final
@dataclass(frozen=True, kw_only=True)
class TabLeak:
    """Gradient matching over relaxed rows.

    Args:
        members: searches that start anew.
        iterations: of each.
        rate: first step size of Adam.
        temperature: of the softmax of categories.
        floor: singular values of a layer's gradient, on its largest, up to which they are raised no further
            at the end of the search; ten times as large ones at its beginning.
        pooled: claim the median of the aligned members instead of the best one.
        improved: members of least loss that are improved cell by cell, one after the other, until one has
            the client's gradient; 0: none.
        passes: over all rows of such a member, at most; fewer of more than 8 rows, none from 28 on.
    """

    card: ClassVar[Card] = Card(
        title="TabLeak",
        summary="rows of a table by matching the gradient, categories relaxed, several members",
        source="Vero et al. 2023, ICML",
        claims=("reconstruction",),
        threat="server, sees single updates",
        control={
            "setting": "a network of one hidden layer, one row of a made-up clinic, no defence",
            "scenario": {
                "data": {"source": "clinic", "examples": 1},
                "model": {"name": "mlp"},
                "federation": {"batch_size": 1},
            },
            "fits": {"members": 2, "iterations": 300},
            "metric": "row_cells",
        },
    )
    needs: ClassVar[Needs] = update_needs(LINEAR, modalities=frozenset({"row"}), one_label=True, twice=True)

    members: int = 8
    iterations: int = 600
    rate: float = 0.15
    temperature: float = 1.0
    floor: float = 0.1
    pooled: bool = False
    improved: int = 3
    passes: int = 12

    def __post_init__(self) -> None:
        positive = self.rate > 0 and self.temperature > 0 and self.floor > 0
        least = min(self.members, self.iterations, self.passes, self.improved + 1)
        if not (least >= 1 and positive):
            raise BadValue(
                SUBJECT,
                needs="members, iterations and passes of at least 1, improved of at least 0; rate, "
                "temperature and floor above 0",
                got=f"{self.members}, {self.iterations}, {self.passes}, {self.improved}; {self.rate:g}, "
                f"{self.temperature:g}, {self.floor:g}",
                fix="correct the attack's table",
            )

    @property
    def budget(self) -> Budget:
        """Iterations of every member, each a gradient and its derivative, and a pass like some hundred."""
        amount = self.iterations + self.improved * self.passes * PASS // self.members
        return Budget(unit="iterations", amount=amount, restarts=self.members, gradients=MATCHING)

    def run(self, view: View, *, rng: Rng) -> tuple[Claim, ...]:
        """The rows of the best member, or of the pool.

        Raises:
            Inapplicable: no table.
        """
        client = replica(view, subject=SUBJECT)
        table = _table(client)
        labels = known_labels(view, client, rng=rng.child("labels"))
        floors = [self.floor * FIRST ** (1 - stage / (STAGES - 1)) for stage in range(STAGES)]
        distances = [_distance(client, floor) for floor in floors]
        size = (self.members, client.images, *client.shape)
        free = torch.randn(size, generator=rng.child("start").torch()).to(client.device).requires_grad_()
        search = torch.optim.Adam([free], lr=self.rate)
        steps = torch.optim.lr_scheduler.CosineAnnealingLR(search, self.iterations)
        said = labels.expand(self.members, -1)
        for step in range(self.iterations):
            distance = distances[step * STAGES // self.iterations]
            losses = distance(relaxed(free, table, self.temperature), said)
            search.zero_grad()
            losses.sum().backward()  # type: ignore[no-untyped-call]  # torch's own
            assert free.grad is not None
            free.grad.sign_()
            record_loss(step, losses.detach())
            search.step()
            steps.step()
        with torch.no_grad():
            soft = relaxed(free, table, self.temperature)
            found = table.project(soft.reshape(-1, *client.shape)).reshape(size)
            losses = distances[-1](found, said)
        # Changes of a cell and exchanges grow with the square of the rows: passes fall alike.
        passes = self.passes * ROWS**2 // max(client.images, ROWS) ** 2
        for member in losses.argsort()[: self.improved if passes else 0].tolist():
            if losses.min() <= NOISE:
                break
            found[member] = improve(found[member], labels, table, distances[-1], passes=passes, enough=NOISE)
            with torch.no_grad():
                losses[member] = distances[-1](found[member][None], labels[None])[0]
        best = int(losses.argmin())
        aligned = align(found, soft, best, table)
        pool = table.project(aligned.median(0).values)
        # How many cells of a row the members agree on: what all of them find is rarely found by chance.
        agreed = torch.stack([table.cells(one, found[best]).double().mean(1) for one in aligned]).mean(0)
        rows = pool if self.pooled else found[best]
        return (Reconstruction(about=client.about, inputs=rows, labels=labels, confidence=agreed.float()),)

    def objective(self, view: View, about: About, *, rng: Rng) -> SearchedLoss:
        """One minus the cosine of the whitened gradients."""
        del about, rng
        distance = _distance(replica(view, subject=SUBJECT), self.floor)

        def loss(rows: Tensor, labels: Tensor) -> Tensor:
            with torch.no_grad():
                return distance(rows, labels)

        return SearchedLoss(loss=loss, noise=NOISE)


def _table(client: Replica) -> Row:
    if not isinstance(client.inputs, Row):
        raise Inapplicable(
            SUBJECT, needs="rows of a table", got=client.inputs.nouns, fix="use inverting_gradients"
        )
    return client.inputs


def relaxed(free: Tensor, table: Row, temperature: float) -> Tensor:
    """Free variables (..., F) as entries of nearly valid rows: numbers in their range, shares of levels."""
    parts = []
    for column, place in table.places():
        own = free[..., place]
        if column.kind == "categorical":
            parts.append(torch.softmax(own / temperature, -1))
        else:
            parts.append(torch.sigmoid(own))
    return torch.cat(parts, -1)


def _distance(client: Replica, floor: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Rows (M, B, F) and labels (M, B) → how far their gradient is from the client's, (M,)."""
    model, task = client.trained, task_of(client.model)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    sent = client.gradient()
    whitened = Whitened.of({name: sent[name] for name in parameters}, floor=floor)

    def loss(values: dict[str, Tensor], rows: Tensor, labels: Tensor) -> Tensor:
        return task.loss(torch.func.functional_call(model, values, (rows,)), labels, rows)

    slope = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))

    def one_by_one(values: dict[str, Tensor], rows: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Of layers that keep statistics of a batch, which no vectorised pass can write."""
        each = []
        for one, said in zip(rows, labels, strict=True):
            leaves = {name: t.clone().requires_grad_() for name, t in values.items()}
            kept = {name: t.clone() for name, t in model.named_buffers()}
            with torch.enable_grad():
                value = loss({**kept, **leaves}, one, said)
                slopes = torch.autograd.grad(value, list(leaves.values()), create_graph=True)
            each.append(dict(zip(leaves, slopes, strict=True)))
        return {name: torch.stack([slopes[name] for slopes in each]) for name in values}

    slopes_of = one_by_one if client.uses_batch_statistics else slope

    def distance(rows: Tensor, labels: Tensor) -> Tensor:
        return whitened.distance(slopes_of(parameters, rows, labels))

    return distance


def align(found: Tensor, soft: Tensor, best: int, table: Row) -> Tensor:
    """Every member's relaxed rows (M, B, F) in the order in which they are nearest to the best member's."""
    ordered = []
    for rows, shares in zip(found, soft, strict=True):
        apart = table.distance(found[best], rows).cpu().numpy()
        ordered.append(shares[torch.from_numpy(linear_sum_assignment(apart)[1]).to(shares.device)])
    return torch.stack(ordered)
