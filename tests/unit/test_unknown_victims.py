"""Rates are over people whom nobody has without the update: rows alike to a public row are left out."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scoring_toys import about, bench, claim, concatenated, run_of

from glasshouse.attacks.tabular import CertifiedRows
from glasshouse.audit.scoring.score import score_metric, score_outcomes
from glasshouse.audit.scoring.table import tables
from glasshouse.errors import Undefined
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.tables.proofs import CertificatesRight, RowsCertified
from glasshouse.metrics.tables.rows import Cells, RowsExact
from glasshouse.modalities.row import Column, Row
from glasshouse.tasks.classification import Classification
from glasshouse.wire import Architecture, Batch, Terms

TABLE = Row(
    columns=(
        Column(name="bmi", kind="continuous", low=0, high=100, tolerance=0.5),
        Column(name="age", kind="integer", low=0, high=100),
    )
)


def rows(*values):
    return TABLE.encode(torch.tensor(values, dtype=torch.float64))


def batch(*values):
    inputs = rows(*values)
    return Batch(inputs=inputs, labels=torch.zeros(len(inputs)).long())


TERMS = Terms(
    protocol="fedsgd",
    architecture=Architecture(name="mlp", inputs=TABLE, task=Classification(classes=2)),
    clients=2,
    sends="gradient",
    cohort=2,
    batch_size=2,
)
PRIVATE = rows([20, 30], [31, 41], [52, 62], [73, 83])
"""Two clients with two rows each."""
PUBLIC = batch([20.3, 30], [52, 62], *([60 + i, i] for i in range(30)))
"""The first row of either client has its like among them, one of them within the tolerance only."""


def of(auxiliary=PUBLIC, **changes):
    return bench(
        PRIVATE,
        each=2,
        modality=TABLE,
        auxiliary=auxiliary,
        heldout=0,
        context=ScoreContext(inputs=TABLE),
        terms=TERMS,
        **changes,
    )


def run(made, *claimed):
    return run_of(made, {c: (claim(c, inputs),) for c, inputs in enumerate(claimed)})


def test_a_row_that_is_among_public_ones_counts_neither_above_nor_below_the_line():
    """Client 0's claim is the public row, client 1's is the row that nobody has."""
    made = of()
    scored = score_metric(
        "rows_exact", RowsExact(), [run(made, rows([20.3, 30], [1, 1]), rows([73, 83], [1, 1]))]
    )
    assert [one.tolist() for one in scored.values] == [[0.0], [1.0]]
    assert [len(one) for one in scored.nulls] == [1, 1]
    assert [one.shape for one in scored.exchanged] == [(1, 1), (1, 1)]
    assert all(len(nulls) == 1 for _, each in scored.rungs.values() for nulls in each)


def test_without_public_likes_every_row_counts():
    made = of(auxiliary=batch(*([60 + i, i] for i in range(30))))
    scored = score_metric("rows_exact", RowsExact(), [run(made, rows([20.3, 30], [31, 41]), rows([73, 83]))])
    assert [one.tolist() for one in scored.values] == [[1.0, 1.0], [0.0, 1.0]]


def test_known_rows_still_take_the_claims_that_are_about_them():
    """Were they gone before the pairing, the claim of the known row would be held against the other one."""
    made = of()
    scored = score_metric("row_cells", Cells(), [run(made, rows([20, 30]), rows([73, 83], [52, 62]))])
    assert concatenated(scored.values) == [0.0, 1.0]


def test_copying_public_rows_gains_nothing():
    """Somebody who files the likes that public data have of the victims was right; no rate says so."""
    made = of()
    copied = run(made, PUBLIC.inputs[:1], PUBLIC.inputs[1:2])
    scored = score_metric("rows_exact", RowsExact(), [copied])
    assert np.concatenate(scored.values).tolist() == [0.0, 0.0]


def test_victims_of_whom_nothing_was_claimed_have_the_same_denominator():
    made = of()
    scored = score_outcomes(
        "rows_exact", RowsExact(), run(made, rows([31, 41])).outcomes, made.ground, made.book
    )
    assert [one.tolist() for one in scored.values] == [[1.0]]
    silent = score_metric("rows_exact", RowsExact(), [run_of(made, {0: (claim(0, rows([31, 41])),), 1: ()})])
    assert [len(one) for one in silent.values] == [1, 1]


def test_proved_rows_are_those_of_strangers_and_proofs_are_all_judged():
    made = of()
    proved = {
        c: (CertifiedRows.proved(about(c), inputs),)
        for c, inputs in enumerate((rows([20, 30], [31, 41]), rows([52, 62], [9, 9])))
    }
    certified = score_metric("rows_certified", RowsCertified(), [run_of(made, proved)])
    assert [one.tolist() for one in certified.values] == [[1.0], [0.0]]
    right = score_metric("certificates_right", CertificatesRight(), [run_of(made, proved)])
    assert [one.tolist() for one in right.values] == [[1.0, 1.0], [1.0, 0.0]]


def test_the_table_of_all_claims_leaves_them_out_and_names_the_others_by_their_place():
    held = batch(*([90, i] for i in range(40)))
    made = of()
    made = replace(made, ground=replace(made.ground, heldout=held))
    (table,) = tables(Cells(), [run(made, rows([31, 41], [20, 30]), rows([73, 83]))])
    assert table.names == ("round 0, client 0, example 2", "round 0, client 1, example 2")
    assert table.places.tolist() == [0, 0]
    assert table.matches.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_whom_everybody_has_is_refused_in_words():
    made = of(auxiliary=batch(*TABLE.decode(PRIVATE).tolist(), *([60 + i, i] for i in range(30))))
    with pytest.raises(Undefined, match="not among the auxiliary data") as caught:
        score_metric("rows_exact", RowsExact(), [run(made, rows([31, 41]), rows([73, 83]))])
    assert caught.value.fix == "take auxiliary data of other people"


def test_pictures_are_dealt_without_copies_and_never_asked():
    pictures = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    made = bench(pictures, auxiliary=Batch(inputs=pictures, labels=torch.zeros(2).long()))
    assert made.book.strangers(pictures) is None
