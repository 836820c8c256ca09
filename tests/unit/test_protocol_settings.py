"""Settings of protocols: ranges that ``check`` knows, ones that would be ignored, and what ``show`` says."""

import pytest

from glasshouse.cli import main
from glasshouse.errors import BadScenario
from glasshouse.scenario.load import from_dict

TREES = {"data": {"source": "clinic", "examples": 20}, "model": {"name": "boosted_trees"}}


def given(protocol, options, **more):
    base = TREES if protocol.startswith("xgb") else {"data": {"source": "clinic", "examples": 20}}
    base = {"name": "any", "attacks": [{"name": "leaf_algebra"}], **base, **more}
    return from_dict({**base, "federation": {"protocol": protocol, "clients": 2, "options": options}})


@pytest.mark.parametrize(
    ("protocol", "options"),
    [
        ("xgb_bagging", {"trees": 0}),
        ("xgb_bagging", {"max_depth": -1}),
        ("xgb_bagging", {"eta": -0.3}),
        ("xgb_cyclic", {"subsample": 0.0}),
        ("xgb_cyclic", {"base_score": 2.0}),
        ("xgb_bagging", {"reg_lambda": -1.0}),
        ("xgb_bagging", {"units": "metres"}),
        ("xgb_histogram", {"eta": 0.0}),
        ("newton", {"damping": -1.0}),
        ("statistics", {"joins": -1}),
        ("dp_ftrl", {"sum_bound": -1.0}),
    ],
)
def test_a_setting_outside_its_range_is_found_before_anything_runs(protocol, options):
    with pytest.raises(BadScenario, match=rf"federation\.options\.{next(iter(options))} "):
        given(protocol, options)


@pytest.mark.parametrize("protocol", ["fedavg", "dp_fedavg"])
def test_rounding_of_a_sum_that_does_not_exist_is_not_ignored(protocol):
    with pytest.raises(BadScenario, match="no secure sum, whose masked numbers it rounds"):
        given(protocol, {"sum_bits": 8})


def test_settings_from_a_base_class_are_explained(capsys):
    with pytest.raises(SystemExit):
        main(["show", "dp_ftrl"])
    words = capsys.readouterr().out
    assert "noise_multiplier: standard deviation" in words
    assert "sum_bits: bits of each contribution to a secure sum; 0: not quantised." in words
    assert words.count("\n    clip: ") == 1
