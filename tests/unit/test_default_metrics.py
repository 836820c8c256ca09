"""A scenario without ``audit.metrics`` is scored by what its attacks claim, in its data's modality."""

import pytest

from glasshouse.scenario.defaults import fill_metrics


@pytest.mark.parametrize(
    ("attacks", "source", "metrics"),
    [
        (["label_inference"], "digits", ["label_accuracy"]),
        (["idlg"], "digits", ["mse", "psnr", "ssim", "identification"]),
        (
            [{"name": "idlg"}, "label_inference"],
            "table:people.csv",
            ["rows_exact", "row_cells", "label_accuracy"],
        ),
        (["idlg"], "arrays:scans.npz", ["mse", "identification"]),
    ],
)
def test_the_metrics_follow_claims_and_modality(attacks, source, metrics):
    raw = {"name": "mine", "attacks": attacks, "data": {"source": source}}
    fill_metrics(raw)
    assert raw["audit"]["metrics"] == metrics


@pytest.mark.parametrize(
    "raw",
    [
        {"attacks": ["idlg"], "audit": {"metrics": ["psnr"]}},
        {"attacks": ["label_inference"], "axes": {"attacks": [["idlg"], ["label_inference"]]}},
        {"attacks": ["no_such_attack"]},
        {"attacks": []},
    ],
)
def test_nothing_is_filled_where_it_is_given_varies_or_is_unknown(raw):
    before = raw.get("audit", {}).get("metrics")
    fill_metrics(raw)
    assert raw["audit"].get("metrics") == before
