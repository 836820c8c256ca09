"""Facts in the report: no count under five, no value and no sum of private rows in clear."""

from glasshouse.attacks.base import About
from glasshouse.attacks.tabular import Fact, What, facts_of
from glasshouse.data.tables.clinic import TABLE
from glasshouse.figures.base import AttackEvidence, CellEvidence, GroupEvidence, PluginSettings
from glasshouse.figures.facts import FactsFigure
from glasshouse.metrics.base import ScoreContext
from glasshouse.results.exhibits import Place


class Nothing:
    """In place of what the figure must not read."""


def shown(facts):
    claim = facts_of(About(rounds=(0,), client=0), facts)
    nothing = Nothing()
    group = GroupEvidence(
        federation=nothing, claims=(claim,), truth=nothing, context=ScoreContext(inputs=TABLE), rng=nothing
    )
    attack = AttackEvidence(
        key="00-a", label="a", settings=PluginSettings(name="a"), attack=nothing, groups=(group,)
    )
    (exhibit,) = FactsFigure().draw(CellEvidence(place=Place(scenario="s"), attacks=(attack,)))
    return exhibit.data["rows"]


def test_small_counts_values_and_sums_are_hidden():
    region = next(place.start for column, place in TABLE.places() if column.name == "region")
    rows = shown(
        [
            Fact(what=What.COUNT, value=60.0),
            Fact(what=What.COUNT, value=17.0, label=1),
            Fact(what=What.COUNT, value=3.0, column=region + 1, low=0.5, high=1.0, label=0),
            Fact(what=What.COUNT, value=0.0, column=region, low=0.5, high=1.0),
            Fact(what=What.OCCURS, column=0, low=0.77123, high=0.77124),
            Fact(what=What.SUM, column=0, value=12.345),
            Fact(what=What.COUNT, value=4.0, column=0, low=0.25, high=0.5),
        ]
    )
    assert [row[3] for row in rows] == [
        "60", "17", "< 5", "0", "a value (not shown)", "a sum (not shown)", "< 5",
    ]  # fmt: skip
    assert rows[2][1:3] == ["region", "region 2, label 0"]
    assert rows[6][1:3] == ["age", "38 to 58"]
    text = str(rows)
    assert "771" not in text
    assert "12.3" not in text
