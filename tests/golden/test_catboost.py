"""What CatBoost's models say of categories, against the rows on which CatBoost grew them.

Source of ``catboost_categories.json``: CatBoost 1.2.10, one tree of depth 4 on 60 made-up rows, saved as JSON
(settings that no reader needs are left out); once with statistics of counts, once of classes; and the hash
that it gives to each of 14 texts, of every length that is hashed differently.
"""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from glasshouse.attacks.parts.documents import in_entries
from glasshouse.attacks.trees.algebra import Configuration, count_rows
from glasshouse.attacks.trees.category_tables import counts_in
from glasshouse.attacks.trees.joint_cells import solve_cells
from glasshouse.attacks.trees.programs import Effort
from glasshouse.errors import BadValue, Inapplicable
from glasshouse.formats.base import read_document
from glasshouse.formats.catboost_categories import key_of, key_of_hash
from glasshouse.guard.rules.documents import inspect_document
from glasshouse.metrics.tables.proofs import FactsRight
from glasshouse.modalities.row import Column, Row

GOLD = json.loads((Path(__file__).parent / "catboost_categories.json").read_text())
TABLE = Row(
    columns=(
        Column(name="age", kind="integer", low=0, high=100),
        Column(name="ward", kind="categorical", levels=tuple(GOLD["levels"]["ward"])),
        Column(name="sex", kind="binary", levels=tuple(GOLD["levels"]["sex"])),
    )
)
ROWS = TABLE.encode(torch.tensor(GOLD["rows"]).double()).double().numpy()
LABELS = np.array(GOLD["labels"])
COUNTED, CLASSED = (json.dumps(model).encode() for model in GOLD["models"])


def view(inputs=TABLE):
    """As much of a view as the reader of trees asks for."""
    return SimpleNamespace(
        terms=SimpleNamespace(options={"units": "raw"}, architecture=SimpleNamespace(inputs=inputs))
    )


def trees(document, inputs=TABLE):
    return in_entries(read_document(document)[1], view(inputs), subject="test")


def counts(document):
    read = trees(document)
    how = Configuration.of({}, subject="test", trees=read)
    return count_rows(read, how, subject="test")


def held(counted):
    """Rows of each label in every box, from the rows themselves."""
    inside = ((ROWS[:, None] >= counted.sums.lower) & (ROWS[:, None] < counted.sums.upper)).all(2)
    assert (inside.sum(1) == 1).all()
    return np.stack([inside[label == LABELS].sum(0) for label in (0, 1)], 1)


@pytest.mark.parametrize("text", GOLD["hashes"])
def test_texts_are_numbered_as_the_library_numbers_them(text):
    assert key_of(text) in {key_of_hash(value) for value in GOLD["hashes"][text]}


def test_splits_by_counts_and_single_categories_are_read_exactly():
    read = trees(COUNTED)
    kinds = {split["split_type"] for split in GOLD["models"][0]["oblivious_trees"][0]["splits"]}
    assert kinds == {"FloatFeature", "OneHotFeature", "OnlineCtr"}
    reached = np.bincount(read.reach(0, ROWS), minlength=len(read.trees[0].feature))
    leaves = read.trees[0].leaves
    assert reached[leaves].tolist() == read.trees[0].count[leaves].tolist()
    counted = counts(COUNTED)
    assert counted.counts.tolist() == held(counted).tolist()


def test_leaves_that_only_a_statistic_of_classes_tells_apart_are_one():
    counted = counts(CLASSED)
    assert len(counted.counts) < len(trees(CLASSED).trees[0].leaves)
    assert counted.counts.sum() == len(ROWS)
    assert counted.counts.tolist() == held(counted).tolist()


@pytest.mark.parametrize(("document", "by_class"), [(COUNTED, False), (CLASSED, True)])
def test_every_count_of_a_table_is_true_of_the_rows(document, by_class):
    read = trees(document)
    assert {table.by_class for table in read.tables} == {by_class}
    stated = counts_in(read.tables, TABLE, rows=len(ROWS))
    assert len(stated) >= 5
    facts = torch.tensor(
        [[f.what, f.value, f.column, f.low, f.high, f.label, f.error, f.certainty] for f in stated]
    ).double()
    truth = torch.from_numpy(np.concatenate([ROWS, LABELS[:, None]], 1))
    assert FactsRight().score(facts, truth, context=None).mean() == 1


def test_a_table_that_leaves_rows_out_says_nothing_of_the_others():
    (table,) = trees(COUNTED).tables
    whole = counts_in([table], TABLE, rows=len(ROWS))
    fewer = counts_in([replace(table, counts=dict(list(table.counts.items())[:2]))], TABLE, rows=len(ROWS))
    assert (len(whole), len(fewer)) == (5, 2)


def test_what_the_file_does_not_determine_is_refused_by_name():
    terms = SimpleNamespace(options={}, architecture=SimpleNamespace(inputs=TABLE))
    with pytest.raises(Inapplicable, match="statistic of classes"):
        solve_cells(trees(CLASSED), terms, announced=0, effort=Effort(certify=0), subject="test", public=None)
    with pytest.raises(BadValue, match="names by hashes"):
        read_document(COUNTED)[1].reach(0, ROWS)
    codes = replace(TABLE.columns[1], kind="integer", levels=(), high=4)
    with pytest.raises(Inapplicable, match="CatBoost's as categories"):
        trees(COUNTED, Row(columns=(TABLE.columns[0], codes, TABLE.columns[2])))


def test_a_site_is_told_of_the_tables_before_it_sends():
    (finding,) = inspect_document(CLASSED).findings
    assert "counts of categories" in finding
    assert "one_hot_max_size" in finding


def test_columns_with_missing_values_are_refused():
    """The file names them: a row without the value is on neither side of a split."""
    model = json.loads(COUNTED)
    model["features_info"]["float_features"][0]["has_nans"] = True
    with pytest.raises(Inapplicable, match="without a missing value"):
        trees(json.dumps(model).encode())
