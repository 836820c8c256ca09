"""`check` says what a guarantee is worth, and whose claims no metric scores."""

import json

import pytest

import glasshouse as gh
from glasshouse.cli.main import main

TABLE = {"name": "private", "attacks": ["label_inference"], "federation": {"clients": 20}}


@pytest.mark.parametrize(
    ("defense", "words"),
    [
        ({"name": "gaussian_mechanism", "epsilon": 3.0, "clip": 1.0, "delta": 0.1}, "above 1 in 20"),
        ({"name": "gaussian_mechanism", "epsilon": 3.0, "clip": 1.0, "delta": 1e-5}, ""),
        ({"name": "clip", "norm": 1.0}, ""),
    ],
    ids=["large", "small", "none"],
)
def test_a_large_delta_is_remarked_on(defense, words):
    checked = gh.check({**TABLE, "defenses": [defense]})
    assert len(checked.remarks) == bool(words)
    assert words in "".join(checked.remarks)
    assert all(remark in str(checked) for remark in checked.remarks)


@pytest.mark.parametrize("metrics", [["psnr"], ["label_accuracy"]], ids=["pixels", "labels"])
def test_an_attack_that_no_metric_scores_is_remarked_on(metrics):
    """The audit ran it, and its page showed nothing of it without a word; rebuilt images have labels, too."""
    attacks = {"attacks": ["linear_input", "label_inference"], "audit": {"metrics": metrics}}
    checked = gh.check({**TABLE, **attacks})
    assert len(checked.remarks) == (metrics == ["psnr"])
    for remark in checked.remarks:
        assert "attack 'label_inference' claims labels" in remark
        assert "audit.metrics" in remark
        assert remark in str(checked)


def test_remarks_stand_in_json_as_well(tmp_path, capsys):
    file = tmp_path / "own.toml"
    file.write_text(
        'name = "own"\nattacks = [{name = "linear_input"}, {name = "label_inference"}]\n'
        '[audit]\nmetrics = ["psnr"]\n[federation]\n'
    )
    with pytest.raises(SystemExit) as ended:
        main(["check", str(file), "--json"])
    assert ended.value.code == 0
    (remark,) = json.loads(capsys.readouterr().out)["remarks"]
    assert "claims labels" in remark


@pytest.mark.parametrize(
    ("audit", "words"),
    [
        ({"margin": 0.05}, "needs 72 independent victims of whom none comes out, and 20 are attacked"),
        ({"margin": 0.05, "victims": 20, "seeds": [0, 1, 2, 3]}, ""),
        ({"margin": 0.2, "victims": 20}, ""),
        ({}, ""),  # the report says how many the default needs
    ],
    ids=["too few", "four seeds", "enough", "default"],
)
def test_a_margin_that_the_victims_are_too_few_for_is_remarked_on(audit, words):
    audit = {"metrics": ["label_accuracy"], **audit}
    checked = gh.check({**TABLE, "audit": audit})
    assert len(checked.remarks) == bool(words)
    assert words in "".join(checked.remarks)
