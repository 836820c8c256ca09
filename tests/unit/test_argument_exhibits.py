"""Charts against an argument: who is joined with whom, what stands beside a line, and what makes none."""

import pytest
import report_specimen as specimen

from glasshouse.audit.run import audit
from glasshouse.figures.arguments import Arguments, Point
from glasshouse.figures.base import PluginSettings
from glasshouse.report.exhibits import draw
from glasshouse.results.files import read_result
from glasshouse.scenario.load import load


def point(gain, own=None, axes=None, metric="ssim_private", label="any label", defenses=(), **arguments):
    finding = specimen.finding(gain=gain, metric=metric, attack=label)
    settings = {"prior": "mean", "prior_weight": 0.03, "epochs": 3, "tuning": True} | arguments
    attack = PluginSettings(name="pli", arguments=settings)
    return Point(attack=attack, axes=axes or {}, finding=finding, own=own, defenses=defenses)


def argument_exhibits(points):
    return list(Arguments().draw_run(points))


def swept(values=(0.3, 0, 0.03), **rest):
    return [point(0.1 * i, prior_weight=v, **rest) for i, v in enumerate(values)]


def test_a_line_joins_what_differs_in_one_argument_alone():
    (chart,) = argument_exhibits([*swept(), point(0.9, prior_weight=0.1, epochs=6)])
    line, _ = chart.data["series"]
    assert line["x"] == [0.0, 0.03, 0.3]
    assert line["y"] == pytest.approx([0.31, 0.41, 0.21])
    assert chart.title == "pli: SSIM private against prior weight"


def test_two_values_make_no_line_and_one_and_one_point_zero_are_one_value():
    assert not argument_exhibits(swept(values=(0, 0.03)))
    assert not argument_exhibits(swept(values=(1, 1.0, 0.03)))
    assert not argument_exhibits([point(0.1, tuning=t) for t in (False, True)] * 3)


def test_lines_are_named_by_the_first_argument_that_tells_them_apart():
    """The translators' epochs differ too, but the prior is what a reader asks for."""
    both = [*swept(prior="ridge", epochs=3), *swept(prior="cyclegan", epochs=9)]
    (chart,) = argument_exhibits(both)
    names = [s["name"] for s in chart.data["series"]]
    assert [n for n in names if ":" not in n] == ["prior = ridge", "prior = cyclegan"]


def test_settings_get_charts_of_their_own():
    result = argument_exhibits(
        [*swept(axes={"federation.clients": 1}), *swept(axes={"federation.clients": 2})]
    )
    assert [c.title[-13:] for c in result] == ["(clients = 1)", "(clients = 2)"]


def test_beside_a_line_stands_its_own_prior_or_else_the_null():
    (own,) = argument_exhibits(swept(own=0.5))
    (null,) = argument_exhibits(swept())
    assert own.data["series"][1] == {
        "name": "pli: its prior image alone",
        "x": [0.0, 0.03, 0.3],
        "y": [0.5, 0.5, 0.5],
        "of": 0,
    }
    assert null.data["series"][1]["name"] == "pli: the null"
    assert null.data["series"][1]["y"] == [0.21, 0.21, 0.21]


def defended(*chains, **rest):
    return [point(0.1 * i, defenses=c, axes={"defenses": f"{i}"}, **rest) for i, c in enumerate(chains)]


def noise(std):
    return PluginSettings(name="gaussian_noise", arguments={"std": std})


def test_a_defence_has_a_line_per_attack_over_its_strength():
    chains = [(noise(s),) for s in (1.0, 0.01, 0.1)] + [(PluginSettings(name="sign"),)]
    (chart,) = argument_exhibits([*defended(*chains, label="a"), *defended(*chains, label="b")])
    assert chart.title == "gaussian_noise: SSIM private against std"
    lines = [s for s in chart.data["series"] if "of" not in s]
    assert [(line["name"], line["x"]) for line in lines] == [("a", [0.01, 0.1, 1.0]), ("b", [0.01, 0.1, 1.0])]
    assert lines[0]["y"] == pytest.approx([0.31, 0.41, 0.21])


def test_other_defences_beside_it_and_other_settings_of_an_attack_are_kept_apart():
    clip = PluginSettings(name="clip", arguments={"norm": 4.0})
    chains = [(noise(s),) for s in (0.0, 0.1, 1.0)]
    both = [(clip, *c) for c in chains]
    assert [c.title[-6:] for c in argument_exhibits(defended(*chains, *both))] == ["st std", "(clip)"]
    (chart,) = argument_exhibits([*defended(*chains, epochs=3), *defended(*chains, epochs=6)])
    assert [s["name"] for s in chart.data["series"]][:2] == ["any label, epochs = 3", "any label, epochs = 6"]


def test_values_stand_at_equal_distances_and_the_line_beside_has_no_marks():
    (chart,) = argument_exhibits(swept(values=(0, 0.03, 1000)))
    drawing = draw(chart)
    assert drawing.plot is not None
    assert 'points="0,' in drawing.plot
    assert " 500," in drawing.plot
    assert drawing.plot.count('class="dot s0"') == 3
    assert drawing.plot.count("dot") == 3
    assert ">0.03</text>" in drawing.plot
    assert [k.style for k in drawing.keys] == ["s0", "s0 own"]


def test_an_axis_over_an_argument_is_joined_across_its_cells(tmp_path):
    attack = '[{name="pli", training={width=8, epochs=1}}, {name="tbi", training={width=8, epochs=1}}]'
    sets = [
        "data.domains.per_class=12",
        f"attacks={attack}",
        'audit.metrics=["ssim_private"]',
        "audit.controls=false",
        "audit.seeds=[0]",
        "federation.rounds=1",
        'axes."attacks.pli.prior_weight"=[0.0, 0.1, 1.0]',
    ]
    audit(load("pli-digits", sets=sets), out=tmp_path / "run", jobs=1)
    result = read_result(tmp_path / "run" / "result.json")
    (chart,) = (e for e in result.exhibits if e.data.get("x_even"))
    line, beside = chart.data["series"]
    assert line["x"] == [0.0, 0.1, 1.0]
    assert line["y"] == [f.value for f in result.findings if f.attack == "pli"]
    assert beside["name"].endswith("its prior image alone")
    assert len(set(beside["y"])) == 1
