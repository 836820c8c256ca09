"""A site's guard for documents: what is small, own or raw is named; honest documents pass."""

import json

import numpy as np
import pytest
import xgboost

from glasshouse.audit.defenses.check import check_defenses
from glasshouse.errors import BadValue
from glasshouse.formats.base import read_document
from glasshouse.formats.carried import NAME, tensor_of
from glasshouse.formats.records import Statistic, Statistics, Survival
from glasshouse.formats.tabular import document_of
from glasshouse.guard.rules.documents import determined, inspect_document
from glasshouse.modalities.array import Array
from glasshouse.transcript.record import RoundRecord, Transcript
from glasshouse.wire import Architecture, Terms, Update


def clinic(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed)
    rows = np.stack([draws.integers(0, 2, n), draws.integers(0, 2, n), draws.integers(0, 2, n)], 1)
    labels = (draws.random(n) < 0.2 + 0.2 * rows.sum(1)).astype(int)
    return rows.astype(np.float32), labels


def document(rows: np.ndarray, labels: np.ndarray, trees: int = 2, **settings) -> bytes:
    how = {"objective": "binary:logistic", "nthread": 1, **settings}
    return bytes(xgboost.train(how, xgboost.DMatrix(rows, labels), trees).save_raw("json"))


def masked(whole: bytes, *, dropped: tuple[str, ...] = ()) -> bytes:
    """As NVIDIA FLARE masks it: every sum is 1; ``dropped`` lists are emptied, too."""
    raw = json.loads(whole)
    for tree in raw["learner"]["gradient_booster"]["model"]["trees"]:
        tree["sum_hessian"] = [1.0] * len(tree["sum_hessian"])
        tree.update({name: [] for name in dropped})
    return json.dumps(raw).encode()


def test_small_cells_and_own_values_are_named():
    draws = np.random.default_rng(0)
    rows = draws.normal(size=(80, 4)).astype(np.float32)
    noisy = rows[:, 0] + rows[:, 1] * rows[:, 2] + draws.normal(size=80)
    sent = document(rows, (noisy > 0).astype(int), trees=3, max_depth=6)
    found = inspect_document(sent, rows)
    assert any("joint cell" in line for line in found.findings)
    assert any("thresholds are values" in line for line in found.findings)
    assert found.values["cuts_at_own_values"] == found.values["cuts"]


def test_three_hundred_honest_documents_pass():
    """Coarse columns, large leaves: no rule fires."""
    for seed in range(300):
        rows, labels = clinic(600, seed)
        assert inspect_document(document(rows, labels, max_depth=1, min_child_weight=5), rows).findings == ()


def test_a_mask_that_hides_nothing_is_told_with_its_remedy():
    draws = np.random.default_rng(1)
    rows = draws.normal(size=(200, 4)).astype(np.float32)
    whole = document(rows, (rows[:, 0] + draws.normal(size=200) > 0).astype(int), max_depth=4)
    assert np.isnan(determined(read_document(whole)[1]))
    assert determined(read_document(masked(whole))[1]) > 0.95
    assert "drop base_weights and loss_changes" in inspect_document(masked(whole)).findings[0]
    bare = masked(whole, dropped=("base_weights", "loss_changes"))
    assert determined(read_document(bare)[1]) == 0
    assert inspect_document(bare).findings == ()


def numbers(count: int, **more) -> bytes:
    stated = [{"name": "count", "value": count, "digits": None}, *more.get("further", [])]
    return json.dumps({"format": "statistics", "numbers": stated}).encode()


def test_counts_that_move_by_a_few_people_are_held_back():
    assert inspect_document(numbers(101), before=numbers(100)).findings[0].startswith("1 counts moved")
    assert inspect_document(numbers(110), before=numbers(100)).findings == ()
    bins = [{"name": "bin", "value": 1, "digits": None, "low": 0, "high": 1}]
    assert "below 5" in inspect_document(numbers(100, further=bins)).findings[0]


def test_raw_patients_and_full_curves_are_named():
    raw = json.dumps({"format": "survival", "times": [3, 5, 8], "raw": [1, 0, 1]}).encode()
    assert "raw follow-up" in inspect_document(raw).findings[0]
    curve = {"format": "survival", "times": [3, 5], "patients": 200, "curve": [0.98, 0.96]}
    assert inspect_document(json.dumps({**curve, "digits": 2}).encode()).findings == ()
    assert "2 digits" in inspect_document(json.dumps(curve).encode()).findings[0]


@pytest.mark.parametrize(
    ("patients", "digits", "remedy"),
    [
        (19, 1, "send none"),
        (20, 1, None),
        (50, 2, "1 digit"),
        (199, 2, "1 digit"),
        (200, 2, None),
        (5000, 3, "2 digits"),
    ],
)
def test_digits_of_a_curve_go_by_its_patients(patients, digits, remedy):
    """Of 50 patients and two digits 94 % of the deaths are certain; of 20 and one digit none is."""
    curve = {"format": "survival", "times": [3, 5], "patients": patients, "curve": [0.9, 0.8]}
    found = inspect_document(json.dumps({**curve, "digits": digits}).encode()).findings
    assert [remedy] * bool(remedy) == [line.rsplit("round it to ")[-1].rsplit(": ")[-1] for line in found]


def test_rows_of_another_table_are_refused():
    rows, labels = clinic(50, 0)
    with pytest.raises(BadValue, match="rows"):
        inspect_document(document(rows, labels), rows[:, :2])
    with pytest.raises(BadValue, match="fewest"):
        inspect_document(document(rows, labels), fewest=1)


@pytest.mark.parametrize(
    ("dropped", "ruling"), [((), "off"), (("base_weights", "loss_changes"), "not declared")]
)
def test_the_defence_check_says_which_fields_undo_the_mask(dropped, ruling):
    """``glasshouse defenses`` on a federation whose clients mask their sums as NVIDIA FLARE does."""
    rows, labels = clinic(200, 0)
    whole = document(np.concatenate([rows, np.random.default_rng(0).normal(size=(200, 2))], 1), labels)
    architecture = Architecture.of("boosted_trees", Array(size=(5,)), 2)
    tensors = {NAME: tensor_of(masked(whole, dropped=dropped))}
    update = Update(round=0, client=0, kind="document", tensors=tensors, examples=200)
    terms = Terms(
        protocol="xgb_bagging",
        architecture=architecture,
        sends="document",
        clients=1,
        cohort=1,
        batch_size=200,
    )
    (judged,) = check_defenses(Transcript(terms=terms, rounds=(RoundRecord(round=0, updates=(update,)),)), ())
    assert judged.ruling == ruling
    assert ("drop both" in judged.reason) == (ruling == "off")


def answers(draws: np.random.Generator, n: int, *, fewest: int) -> bytes:
    """What a careful site answers: counts, a sum, and bins that are merged until each holds enough people."""
    ages = draws.integers(18, 90, n)
    counts, edges = np.histogram(ages, bins=12, range=(18, 90))
    merged: list[list[float]] = []
    for count, low, high in zip(counts.tolist(), edges, edges[1:], strict=False):
        if merged and merged[-1][0] < fewest:
            merged[-1] = [merged[-1][0] + count, merged[-1][1], float(high)]
        else:
            merged.append([count, float(low), float(high)])
    if len(merged) > 1 and merged[-1][0] < fewest:
        count, _, high = merged.pop()
        merged[-1] = [merged[-1][0] + count, merged[-1][1], high]
    bins = [Statistic(name="bin", value=c, column="age", low=lo, high=hi) for c, lo, hi in merged]
    whole = Statistic(name="count", value=n)
    total = Statistic(name="sum", value=float(ages.sum()), column="age", digits=4)
    return document_of(Statistics(numbers=(whole, total, *bins)))


def quarters(draws: np.random.Generator, n: int) -> bytes:
    """Follow-up by the quarter over three years; losses at the end of the study."""
    times = np.minimum(np.ceil(draws.weibull(1.2, n) * 5), 12)
    died = draws.random(n) < 0.6
    each = np.unique(times)
    events = np.array([(died & (times == t)).sum() for t in each])
    censored = np.array([(~died & (times == t)).sum() for t in each])
    return document_of(Survival(times=each, patients=n, events=events, censored=censored))


def test_three_hundred_honest_answers_and_tables_pass_and_careless_ones_do_not():
    for seed in range(300):
        draws = np.random.default_rng(seed)
        before = answers(draws, 150, fewest=5)
        assert inspect_document(answers(draws, 150 + 5 + seed % 40, fewest=5), before=before).findings == ()
        assert inspect_document(quarters(draws, 3000)).findings == ()
        moved = answers(draws, 150 + 1 + seed % 4, fewest=5)
        assert "moved by fewer than 5" in inspect_document(moved, before=before).findings[0]
        raw = json.dumps(
            {"format": "survival", "times": draws.integers(1, 1000, 40).tolist(), "raw": [1] * 40}
        )
        assert "raw follow-up" in inspect_document(raw.encode()).findings[0]
