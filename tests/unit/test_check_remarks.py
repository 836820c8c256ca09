"""`check` says what a guarantee is worth: a δ above 1 in the units that it is about."""

import pytest

import glasshouse as gh

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
