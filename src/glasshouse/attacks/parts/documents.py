"""The document in a view of one update, read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np
import torch

from glasshouse.attacks.base import About, Needs, Scope
from glasshouse.attacks.tabular import Certainty
from glasshouse.errors import BadFile, Inapplicable
from glasshouse.formats.base import read_document
from glasshouse.formats.carried import bytes_of
from glasshouse.formats.catboost_categories import key_of
from glasshouse.formats.records import LEAF, Category, CategoryTable, Document, Tree, TreeEnsemble
from glasshouse.modalities.row import Row
from glasshouse.transcript.view import View
from glasshouse.wire import Broadcast, Update

ON_CLINIC: Final = {
    "setting": "two trees of depth 4 on 60 rows of a made-up clinic, no defence",
    "scenario": {
        "data": {"source": "clinic", "examples": 60, "auxiliary": 600},
        "model": {"name": "boosted_trees"},
        "federation": {
            "protocol": "xgb_bagging",
            "batch_size": 60,
            "options": {"trees": 2, "max_depth": 4, "min_child_weight": 0.5},
        },
    },
}
"""Control of attacks on trees."""
ON_SITE: Final = {
    "setting": "statistics of 12 rows of a made-up clinic, no filter",
    "scenario": {
        "data": {"source": "clinic", "examples": 12, "auxiliary": 600},
        "model": {"name": "no_model"},
        "federation": {"protocol": "statistics", "batch_size": 12},
    },
}
"""Control of attacks on statistics of one round."""
ON_SITES: Final = {
    "setting": "statistics of 12 rows of a made-up clinic, one of whom joined, no filter",
    "scenario": {
        "data": {"source": "clinic", "examples": 12, "auxiliary": 600},
        "model": {"name": "no_model"},
        "federation": {
            "protocol": "statistics",
            "batch_size": 12,
            "rounds": 2,
            "options": {"joins": 1},
        },
        "audit": {"rounds": [0, 1]},
    },
}
"""Control of attacks on statistics of several rounds."""
ON_COHORT: Final = {
    "setting": "the follow-up table of 5 patients of a made-up cohort",
    "scenario": {
        "data": {"source": "cohort", "examples": 5, "auxiliary": 300},
        "model": {"name": "no_model"},
        "federation": {"protocol": "survival", "batch_size": 5},
    },
}
"""Control of attacks on survival tables."""
SLACK: Final = 1e-6
"""Rounding of a cut at an end of a column's range."""
BOOSTED: Final = frozenset({"xgb_bagging", "xgb_cyclic"})


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Received:
    """One client's document.

    Attributes:
        update: the message.
        media: name of its format.
        document: what it says.
        first: the client had received no model: its trees are the first ones.
    """

    update: Update
    media: str
    document: Document
    first: bool

    @property
    def about(self) -> About:
        """The round and the client."""
        return About(rounds=(self.update.round,), client=self.update.client)


def received(view: View, *, subject: str) -> Received:
    """The document of the one update in a view.

    Raises:
        Inapplicable: the update is no document, or one that is damaged or of no known format.
    """
    broadcast, update = view.single(subject=subject)
    return read_update(broadcast, update, subject=subject)


def read_update(broadcast: Broadcast, update: Update, *, subject: str) -> Received:
    """The document of one update.

    Raises:
        Inapplicable: as :func:`received`.
    """
    documents = [t for t in update.tensors.values() if t.dtype == torch.uint8]
    if len(documents) != 1:
        raise Inapplicable(
            subject,
            needs="an update that is one document of bytes",
            got=f"kind '{update.kind}', {len(documents)} tensors of bytes",
            fix="audit a protocol that sends documents: glasshouse list protocols",
        )
    media, document = read_sent(bytes_of(documents[0]), subject=subject)
    before = any(t.dtype == torch.uint8 and bool(t.any()) for t in broadcast.tensors.values())
    return Received(update=update, media=media, document=document, first=not before)


def read_sent(document: bytes, *, subject: str) -> tuple[str, Document]:
    """The media name and the record of what a client sent.

    What one client sent wrongly is no reason to end an audit of the others.

    Raises:
        Inapplicable: it is damaged, or of no known format.
    """
    try:
        return read_document(document)
    except BadFile as error:
        fix = "docs/documents.md says what is read of each format"
        raise Inapplicable(subject, needs=error.needs, got=error.got, fix=fix) from error


def first_trees(view: View, *, subject: str) -> tuple[Received, TreeEnsemble]:
    """The document, which must be trees that a client boosted from nothing.

    Raises:
        Inapplicable: no trees, or trees on top of others' trees; as :func:`received`.
    """
    got = received(view, subject=subject)
    return got, check_first(got, view, subject=subject)


def check_first(got: Received, view: View, *, subject: str) -> TreeEnsemble:
    """The trees of a document in a view, which the client boosted from nothing, in entries of encoded rows.

    Raises:
        Inapplicable: no trees, or trees on top of others' trees; as :func:`in_entries`.
    """
    if not isinstance(got.document, TreeEnsemble) or not got.first:
        raise Inapplicable(
            subject,
            needs="trees that a client boosted before it received others'",
            got="trees on top of a common model" if not got.first else f"a document {got.media}",
            fix="set audit.rounds = [0]",
        )
    return in_entries(got.document, view, subject=subject)


def in_entries(trees: TreeEnsemble, view: View, *, subject: str) -> TreeEnsemble:
    """Trees whose thresholds are entries of encoded rows, as everything else that is claimed about a table.

    An app's trees see the table's numbers as they are (``units = "raw"`` in the options): feature 0 is the
    first column. A threshold is encoded like a value, so that it stays the value that it is. Categories that
    a document names by hashes are those of the schema's levels.

    Raises:
        Inapplicable: columns that the app's trees cannot have seen as one number each, or rows with missing
            values.
    """
    raw = view.terms.options.get("units") == "raw"
    trees = _over_entries(trees, view, subject=subject) if raw else trees
    inputs = view.terms.architecture.inputs
    if isinstance(inputs, Row):
        check_present(trees, inputs, subject=subject)
    return trees


def check_present(trees: TreeEnsemble, table: Row, *, subject: str) -> None:
    """Refuse trees of rows with missing values, which are on neither side of a split, and of other columns.

    A library takes a value for missing where an app tells it so, often 0. The document shows it by splits
    that know missing values, or have every value of a column on one side.

    Raises:
        Inapplicable: as said.
    """
    (width,), fix = table.shape, "declare what is missing as values of its own, and encode it before training"
    if trees.features != width:
        needs = f"trees over the {width} entries of an encoded row"
        fix = 'state federation.options.units = "raw" where trees see the table\'s own numbers'
        raise Inapplicable(subject, needs=needs, got=f"trees over {trees.features} features", fix=fix)
    low, high = (0.0, 1.0 + SLACK) if trees.strict else (-SLACK, 1.0)
    sign = "a split that knows missing values" if trees.missing else ""
    hot = [
        i for column, place in table.places() if not column.numeric for i in range(place.start, place.stop)
    ]
    values, every_left = False, trees.strict
    for tree in trees.trees:
        plain = np.array([n for n in np.flatnonzero(tree.feature != LEAF) if n not in tree.categories], int)
        cuts = tree.threshold[plain]
        # Rows whose value is below, or not above, the cut go left; every value is from 0 to 1.
        aside = (cuts <= low) | (cuts > high) if trees.strict else (cuts < low) | (cuts >= high)
        sign = sign or ("a split with all values on one side" if aside.any() else "")
        values = values or bool((np.isin(tree.feature[plain], hot) & (cuts == 1)).any())
        every_left = every_left and bool(tree.missing_left[plain].all())
    if sign or (every_left and values):
        # XGBoost's "exact" sends all missing values left and cuts a category at a half; "hist" at 1.
        got = sign or "values for missing ones to the left, in trees that cut at values"
        raise Inapplicable(subject, needs="trees of rows without a missing value", got=got, fix=fix)


def _over_entries(trees: TreeEnsemble, view: View, *, subject: str) -> TreeEnsemble:
    """Trees over columns, over entries; as :func:`in_entries`."""
    table = table_in(view, subject=subject)
    named = {table_.column for table_ in trees.tables} | {
        int(tree.feature[node]) for tree in trees.trees for node in tree.categories
    }
    fits = len(table.columns) == trees.features and not any(column.missing for column in table.columns)
    used = {int(f) for tree in trees.trees for f in np.unique(tree.feature) if f != LEAF} | named
    if not fits or any(table.columns[c].numeric == (c in named) for c in used):
        raise Inapplicable(
            subject,
            needs=f"a table of {trees.features} columns, one for each feature of the trees: numbers, and "
            "categories where the trees split by categories",
            got=f"{len(table.columns)} columns of {table.shape[0]} entries",
            fix="declare categories as the codes that the app uses, kind integer (CatBoost's as categories, "
            "with their levels), and no column as missing",
        )
    places = [place.start for _, place in table.places()]
    return replace(
        trees,
        features=table.shape[0],
        trees=tuple(_encoded(tree, table, places) for tree in trees.trees),
        tables=tuple(_levels(one, table, places) for one in trees.tables),
    )


def _encoded(tree: Tree, table: Row, places: Sequence[int]) -> Tree:
    """A tree over columns, over entries."""
    feature, threshold = tree.feature.copy(), tree.threshold.copy()
    left, right = tree.left.copy(), tree.right.copy()
    categories: dict[int, Category | None] = {}
    for node in np.flatnonzero(tree.feature != LEAF).tolist():
        column = table.columns[int(tree.feature[node])]
        start = places[int(tree.feature[node])]
        feature[node] = start
        if node not in tree.categories:
            value = torch.tensor([tree.threshold[node]], dtype=torch.float64)
            threshold[node] = float(column.encode(value)[0, 0])
            continue
        asked = tree.categories[node]
        if asked is None:
            categories[node] = None
            continue
        listed = [k for k, level in enumerate(column.levels) if key_of(level) in asked.values]
        if column.kind == "categorical":
            entries = range(start, start + column.entries)
            values = frozenset(start + k for k in listed)
            categories[node] = Category(values=values, right=asked.right, among=tuple(entries))
            continue
        # A binary column is one entry, 0 or 1: a threshold says which of its two levels goes right.
        ahead = {k for k in (0, 1) if (k in listed) == asked.right}
        threshold[node] = 0.5 if len(ahead) == 1 else 2.0 if not ahead else -1.0
        if ahead == {0}:
            left[node], right[node] = right[node], left[node]
    return replace(tree, feature=feature, threshold=threshold, left=left, right=right, categories=categories)


def _levels(counted: CategoryTable, table: Row, places: Sequence[int]) -> CategoryTable:
    """A table over levels of a column, by the number of the level; the column is its first entry."""
    column = table.columns[counted.column]
    keys = {key_of(level): k for k, level in enumerate(column.levels)}
    counts = {keys[key]: counts for key, counts in counted.counts.items() if key in keys}
    return replace(counted, column=places[counted.column], counts=counts)


def as_certain(view: View, level: Certainty) -> Certainty:
    """``level`` where the terms say that rows are plain, else that of a guess.

    Weights whose sum is the number of rows, and a value that an app takes for a missing one where every split
    sends those right, give the file of another client whose rows are plain.
    """
    options = view.terms.options
    # Captures from before this setting do not have it.
    said = options.get("rows", "unknown" if options.get("units") == "raw" else "plain")
    return level if said == "plain" else Certainty.GUESSED


def needs(*uses: str, protocols: frozenset[str] = BOOSTED, scope: Scope = "update") -> Needs:
    """Needs of an attack on documents, of trees unless said; ``uses``: grants used where given."""
    return Needs(
        sees=frozenset({"broadcast", "update"}),
        scope=scope,
        uses=frozenset(uses),
        protocols=protocols,
        modalities=frozenset({"row"}),
    )


def table_in(view: View, *, subject: str) -> Row:
    """The columns that the terms describe.

    Raises:
        Inapplicable: the data are no table.
    """
    table = view.terms.architecture.inputs
    if not isinstance(table, Row):
        raise Inapplicable(subject, needs="rows of a table", got=table.nouns, fix="audit a table")
    return table
