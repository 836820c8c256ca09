"""A wrong setting in Python, a folder that is no capture, a column of dates: each is answered in our form."""

import tomllib

import pandas as pd
import pytest

import glasshouse as gh
from glasshouse.audit.captured.collect import collect
from glasshouse.data.tables.schema import draft
from glasshouse.data.tables.table import dates_in, drafted
from glasshouse.errors import BadFile, BadValue
from glasshouse.settings import Optimizer, Training


def test_an_optimizer_that_does_not_exist_is_answered_with_those_that_do():
    with pytest.raises(BadValue) as told:
        Optimizer(name="adagrad")
    assert (told.value.subject, told.value.got) == ("Optimizer, name", "'adagrad'")
    assert told.value.needs == "'sgd', 'adam' or 'adamw'"
    assert "gh.explain" in told.value.fix


@pytest.mark.parametrize("wrong", [{"momentum": 0.9, "name": "adam"}, {"rate": 1.0}, {"period": 3}])
def test_settings_that_do_not_fit_are_answered_so_too(wrong):
    with pytest.raises(BadValue, match="Optimizer"):
        Optimizer(**wrong)
    with pytest.raises(BadValue, match="Training, mode"):
        Training(mode="train")


def test_a_capture_without_transcript_is_named_by_its_path(tmp_path):
    with pytest.raises(BadFile, match="no such folder") as told:
        gh.terms(tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in told.value.subject
    with pytest.raises(BadFile) as told:
        gh.terms(tmp_path)
    assert str(tmp_path / "transcript" / "terms.json") in told.value.got
    with pytest.raises(BadFile, match="no such folder") as told:
        collect(tmp_path / "nowhere", [])
    assert str(tmp_path / "nowhere") in told.value.subject


@pytest.mark.parametrize(
    "texts",
    [
        ["2024-01-05", "2024-02-29", "1999-12-31"],
        ["05.01.2024", "29.02.2024", ""],
        ["1/5/24", "2/28/24", "12/31/99"],
        ["2024-01-05 10:30:00", "2024-02-29T09:00", "1999-12-31 23:59"],
    ],
)
def test_dates_are_left_out_of_a_draft_with_what_to_do(texts):
    frame = pd.DataFrame({"admitted": texts, "age": [30, 41, 52], "ill": ["yes", "no", "yes"]})
    text = draft(drafted(frame), target="ill", dates=dates_in(frame))
    columns = {one["name"]: one for one in tomllib.loads(text)["column"]}
    assert columns["admitted"] == {"name": "admitted", "kind": "integer", "role": "ignored"}
    assert "dt.days" in text
    assert not any(one in text for one in texts if one)


OTHERS = (
    ["1.0.3", "2.4.1", "1.1.1"],
    ["Monday", "Friday", "Sunday"],
    ["7", "8", "9"],
    ["2024-13-45", "2024-01-01", "2024-01-02"],
)


@pytest.mark.parametrize("texts", OTHERS)
def test_versions_days_and_numbers_are_no_dates(texts):
    assert not dates_in(pd.DataFrame({"x": texts}))
