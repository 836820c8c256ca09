"""Metrics of what attacks on tables prove: certified rows, joint cells of trees, and facts about columns.

Shape letters: B private rows, R claims, F entries of an encoded row, L labels.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.examples import Batch
from glasshouse.metrics.base import Hits, ScoreContext, nothing_claimed, rate_wording
from glasshouse.metrics.tables.rows import right_cells
from glasshouse.registry import Card

Floats = NDArray[np.float64]
COUNT, OCCURS, SUM = 0, 1, 2
"""Kinds of facts, as in ``attacks.tabular.What``."""
GUESSED = 0
"""The certainty without a certificate, as in ``attacks.tabular.Certainty``."""
AT_ONCE: Final = 2**20
"""Pairs of a fact and a row that are looked at together."""
NEAR: Final = 1e-7
"""Slack of a fact's ends: rounding of float32 entries."""


@final
@dataclass(frozen=True, kw_only=True)
class RowsCertified(Hits):
    """1 for every private row that is claimed with a certificate and all cells right, else 0."""

    card = Card(summary="share of the private rows that are claimed right with a certificate")
    wording = rate_wording(
        label="rows certified",
        sentence="wrote down {} of the private rows and proved them",
        explanation="Share of the private rows that the attack wrote down with every cell right and could "
        "prove without the truth: higher is worse. Guessing proves nothing.",
        severity="images",
        order=3,
    )
    claim: ClassVar[str] = "certified_rows"

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Floats:
        return np.asarray(right_cells("rows_certified", claimed, truth, context).all(1), dtype=np.float64)


@final
@dataclass(frozen=True, kw_only=True)
class CertificatesRight(Hits):
    """1 for every certified row that is a private row, else 0: anything below 1 is a defect of the attack."""

    card = Card(summary="share of the certified rows that are private rows; below 1 a proof is wrong")
    wording = rate_wording(
        label="certificates that hold",
        sentence="was right in {} of the rows that it certified",
        explanation="Share of the certified rows that are private rows. A certificate is a proof, so that "
        "anything below 100 % is a defect of the attack.",
        private=False,
        order=900,
    )
    claim: ClassVar[str] = "certified_rows"
    of_claims: ClassVar[bool] = True

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Floats:
        return _are_private("certificates_right", claimed, truth, context)


@final
@dataclass(frozen=True, kw_only=True)
class PeopleRead(Hits):
    """1 for every certified row that is a private row, else 0; victims about whom none is certified are out.

    For attacks on single people of a larger group, such as one who joined: of those, how many were read.
    """

    card = Card(summary="share of the people whose row an attack certified that it read with all cells right")
    wording = rate_wording(
        label="people read",
        sentence="read {} of the people whom it singled out, with every cell right",
        explanation="Share of the rows that the attack singled out and certified which are private rows with "
        "every cell right: higher is worse. Guessing reaches about 0 %.",
        severity="images",
        order=2,
    )
    claim: ClassVar[str] = "certified_rows"
    of_claims: ClassVar[bool] = True

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Floats:
        return _are_private("people_read", claimed, truth, context)


def _are_private(name: str, claimed: Tensor, truth: Tensor, context: ScoreContext) -> Floats:
    """1 for every claimed row that is a private row, each private row once."""
    if not len(claimed):
        raise nothing_claimed(name, "certified row", "rows_certified")
    return np.asarray(right_cells(name, truth, claimed, context).all(1), dtype=np.float64)


@final
@dataclass(frozen=True, kw_only=True)
class LeavesExact(Hits):
    """1 for every private row that the claim counts in its cell with its label, else 0.

    The null: as many public rows, dropped into the same cells. Rows whose like is among the auxiliary rows
    count in both: a count says how many rows a cell has, not which, so no hit is about one row.
    """

    card = Card(
        summary="share of the private rows counted in their joint cell of the trees with their label",
        source="the headline of TimberStrike, arXiv:2506.07605, without its tolerance",
    )
    wording = rate_wording(
        label="rows in their cell",
        sentence="placed {} of the private rows in their joint cell of the trees, with their label",
        explanation="Share of the private rows that the claim counts in the right intersection of leaves and "
        "with the right label: higher is worse. Public rows dropped into the same cells often reach most of "
        "it, so only the gain over them is the message's.",
        severity="images",
        order=50,
    )
    claim: ClassVar[str] = "leaves"
    reads: ClassVar[str] = "boxes"
    against: ClassVar[str] = "examples"
    null_name: ClassVar[str] = "public rows in the same cells"

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Floats:
        del context
        boxes, rows = _floats(claimed), _floats(truth)
        inside = _inside(boxes, rows)
        return _hits(inside, boxes[:, -2] if len(boxes) else np.zeros(0))

    def blind(
        self, claimed: Tensor, truth: Tensor, auxiliary: Batch | None, *, context: ScoreContext
    ) -> Floats | None:
        del context
        if auxiliary is None or not len(auxiliary):
            return None
        boxes, rows = _floats(claimed), _floats(truth)
        # A claim of nothing has no cells, and neither has its null.
        if not len(boxes):
            return np.zeros(len(rows))
        # Every cell of the claim under every label: the null does not know which of them are empty.
        cells = np.unique(boxes[:, :-3], axis=0)
        labels = np.unique(auxiliary.labels.double().numpy())
        every = np.concatenate(
            [
                np.repeat(cells, len(labels), 0),
                np.tile(labels, len(cells))[:, None],
                np.zeros((len(cells) * len(labels), 2)),
            ],
            1,
        )
        public = np.concatenate([auxiliary.inputs, auxiliary.labels[:, None]], 1).astype(np.float64)
        share = _inside(every, public).mean(0)
        return _hits(_inside(every, rows), _shared_out(share, len(rows)))


@final
@dataclass(frozen=True, kw_only=True)
class FactsRight(Hits):
    """1 for every claimed fact that is true of the client's rows, else 0.

    The null claims as many facts of the same form from public data: expected counts, common values. A fact is
    about all rows of a client, those whose like is among the auxiliary rows included.
    """

    card = Card(summary="share of the claimed facts about a client's rows that are true")
    wording = rate_wording(
        label="facts right",
        sentence="was right in {} of the facts that it stated about the private rows",
        explanation="Share of the stated facts (counts, sums, values that occur) that are true: "
        "higher is worse. Public data alone make many of them likely, where a column has few values.",
        severity="other",
        order=120,
    )
    claim: ClassVar[str] = "facts"
    reads: ClassVar[str] = "facts"
    against: ClassVar[str] = "examples"
    null_name: ClassVar[str] = "the same facts of public data"

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Floats:
        del context
        facts, rows = _floats(claimed), _floats(truth)
        if not len(facts):
            raise nothing_claimed("facts", "fact", "leaves_exact")
        return _hold(facts, rows)

    def blind(
        self, claimed: Tensor, truth: Tensor, auxiliary: Batch | None, *, context: ScoreContext
    ) -> Floats | None:
        del context
        if auxiliary is None or not len(auxiliary):
            return None
        public = np.concatenate([auxiliary.inputs, auxiliary.labels[:, None]], 1).astype(np.float64)
        facts, rows = _floats(claimed), _floats(truth)
        return _hold(_from_public(facts, public, len(rows)), rows)


@final
@dataclass(frozen=True, kw_only=True)
class FactsProved(Hits):
    """1 for every fact claimed with a certificate that is true, else 0: below 1 is a defect of the attack."""

    card = Card(summary="share of the proved facts that are true; below 1 a proof is wrong")
    wording = rate_wording(
        label="proved facts that hold",
        sentence="was right in {} of the facts that it proved",
        explanation="Share of the facts stated as proved, or as the only ones that fit, that are true. "
        "Anything below 100 % is a defect of the attack.",
        private=False,
        order=901,
    )
    claim: ClassVar[str] = "facts"
    reads: ClassVar[str] = "facts"
    against: ClassVar[str] = "examples"

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Floats:
        del context
        facts, rows = _floats(claimed), _floats(truth)
        proved = facts[facts[:, -1] > GUESSED]
        if not len(proved):
            raise nothing_claimed("facts_proved", "proved fact", "facts")
        return _hold(proved, rows)


@final
@dataclass(frozen=True, kw_only=True)
class LeavesProved(Hits):
    """1 for every box whose count is claimed with a certificate and is right, else 0."""

    card = Card(summary="share of the proved counts of boxes that are true; below 1 a proof is wrong")
    wording = rate_wording(
        label="proved counts that hold",
        sentence="was right in {} of the counts of rows that it proved",
        explanation="Share of the counts of rows in a box, stated as proved or as the only ones that fit, "
        "that are true. Anything below 100 % is a defect of the attack.",
        private=False,
        order=902,
    )
    claim: ClassVar[str] = "leaves"
    reads: ClassVar[str] = "boxes"
    against: ClassVar[str] = "examples"

    def score(self, claimed: Tensor, truth: Tensor, *, context: ScoreContext) -> Floats:
        del context
        boxes, rows = _floats(claimed), _floats(truth)
        proved = boxes[boxes[:, -1] > GUESSED] if len(boxes) else boxes
        if not len(proved):
            raise nothing_claimed("leaves_proved", "proved count", "leaves_exact")
        return np.asarray(_inside(proved, rows).sum(0) == proved[:, -2], dtype=np.float64)


def _floats(values: Tensor) -> Floats:
    return np.asarray(values.double().cpu().numpy())


def _inside(boxes: Floats, rows: Floats) -> NDArray[np.bool_]:
    """Which rows (B, F + 1) lie in which boxes (R, 2 F + 3) and have their label, (B, R).

    Raises:
        BadValue: boxes and rows of another width.
    """
    width = rows.shape[1] - 1
    if len(boxes) and boxes.shape[1] != 2 * width + 3:
        raise BadValue(
            "metric 'leaves_exact'",
            needs=f"boxes of 2 × {width} ends, a label, a count and a certainty",
            got=f"{boxes.shape[1]} numbers",
            fix="claim boxes in entries of encoded rows",
        )
    inside = np.zeros((len(rows), len(boxes)), dtype=np.bool_)
    for r, box in enumerate(boxes):
        lower, upper = box[:width], box[width : 2 * width]
        within = ((rows[:, :-1] >= lower) & (rows[:, :-1] < upper)).all(1)
        inside[:, r] = within & (rows[:, -1] == box[2 * width])
    return inside


def _hits(inside: NDArray[np.bool_], counts: Floats) -> Floats:
    """1 for the first ``counts`` rows of every box, 0 for the others; each row once."""
    hits = np.zeros(len(inside))
    for r, count in enumerate(counts):
        free = np.flatnonzero(inside[:, r] & (hits == 0))
        hits[free[: int(count)]] = 1.0
    return hits


def _shared_out(share: Floats, count: int) -> Floats:
    """``count`` rows in proportion to shares: whole numbers by the largest remainders."""
    wanted = share * count
    whole = np.floor(wanted)
    rest = round(float(wanted.sum() - whole.sum()))
    whole[np.argsort(whole - wanted, kind="stable")[:rest]] += 1
    return whole


def _hold(facts: Floats, rows: Floats) -> Floats:
    """Which facts (R, 8) are true of rows (B, F + 1), (R,), 1 or 0."""
    size = max(1, AT_ONCE // max(1, len(rows)))
    parts = [_hold_together(facts[i : i + size], rows) for i in range(0, len(facts), size)]
    return np.concatenate(parts)


def _hold_together(facts: Floats, rows: Floats) -> Floats:
    what, value, column, low, high, label, error, _ = facts.T
    of_label = (label < 0) | (rows[:, -1:] == label)  # (B, R)
    entries = rows[:, column.astype(np.int64)]
    within = of_label & ((column < 0) | ((entries >= low - NEAR) & (entries <= high + NEAR)))
    sums = np.where(of_label, entries, 0.0).sum(0)
    true = np.where(what == COUNT, within.sum(0), sums)
    right = np.where(what == OCCURS, within.any(0), np.abs(true - value) <= error + NEAR)
    return np.asarray(right, dtype=np.float64)


def _from_public(facts: Floats, public: Floats, count: int) -> Floats:
    """Facts of the same form from public rows: expected counts and sums; the most common values."""
    guessed = facts.copy()
    turns: dict[int, int] = {}
    for fact in guessed:
        what, column, label = int(fact[0]), int(fact[2]), fact[5]
        of_label = np.ones(len(public), dtype=np.bool_) if label < 0 else public[:, -1] == label
        # The same column asked several times gets its values in order of how common they are.
        if what == OCCURS:
            values, times = np.unique(public[:, column], return_counts=True)
            turn = turns[column] = turns.get(column, -1) + 1
            common = values[np.argsort(-times, kind="stable")[turn % len(values)]]
            middle = (fact[3] + fact[4]) / 2
            fact[3:5] += common - middle
            continue
        # Counts and sums are what as many public rows would have.
        within = of_label
        if column >= 0 and what == COUNT:
            within = of_label & (public[:, column] >= fact[3]) & (public[:, column] <= fact[4])
        amount = within.mean() if what == COUNT else (public[:, column] * of_label).mean()
        fact[1] = np.round(amount * count) if what == COUNT else amount * count
    return guessed
