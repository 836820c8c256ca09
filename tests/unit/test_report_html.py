"""The page: it holds everything, trusts nothing it was given, and needs nothing beside it."""

import base64
import dataclasses
import errno
import hashlib
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import report_specimen as specimen
from report_cards import described

from glasshouse.errors import BadFile, DiskFull
from glasshouse.report.html import write_html
from glasshouse.results.records import Result

HOSTILE = """<script>alert(1)</script>"'><img src=x onerror=alert(1)>{{ 7*7 }}{%s}"""
# Words with a meaning for the program; everything else in a result is free text.
FIXED = {"verdict", "kind", "file", "metric", "state", "display", "severity"}


class Page(HTMLParser):
    """Collects what could act: tags, ids, addresses and event handlers."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.addresses, self.handlers, self.words = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in {"src", "href", "srcset", "action", "data", "xlink:href"}:
                self.addresses.append(value)
            if name.startswith("on"):
                self.handlers.append(name)

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def scripts(page):
    return re.findall(r"<script>(.*?)</script>", page, re.DOTALL)


def render(result, run, **options):
    return write_html(specimen.write(result, run), **options).read_text()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    return render(specimen.specimen(run), run)


def poison(value, name=""):
    """The same data with hostile text wherever text is free."""
    if dataclasses.is_dataclass(value):
        changed = {f.name: poison(getattr(value, f.name), f.name) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **changed)
    if isinstance(value, dict):
        return {(k if name in {"data", ""} else k + HOSTILE): poison(v, name or k) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(poison(v, name) for v in value)
    if isinstance(value, str) and name not in FIXED:
        return value + HOSTILE
    return value


def test_needs_nothing_beside_it(page):
    parsed = Page(page)
    assert {"iframe", "object", "embed", "base", "form"} & set(parsed.tags) == set()
    assert all(a.startswith(("#", "data:image/png;base64,", "data:,")) for a in parsed.addresses)
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" in page


def test_one_script_runs_and_no_other_may(page):
    script, allowed = scripts(page)[0], re.search(r"script-src 'sha256-([^']+)'", page)[1]
    assert base64.b64decode(allowed) == hashlib.sha256(script.encode()).digest()
    assert len(scripts(page)) == 1


def test_hostile_names_stay_text(tmp_path):
    hostile = poison(specimen.specimen(tmp_path))
    text = render(hostile, tmp_path)
    parsed = Page(text)
    assert scripts(text) == scripts(render(Result(suite="x"), tmp_path / "plain"))
    assert parsed.handlers == []
    assert all(a.startswith(("#", "data:image/png;base64,", "data:,")) for a in parsed.addresses)
    assert parsed.text.count("<script>alert(1)</script>") > 100
    assert "{{ 7*7 }}" in parsed.text
    assert "49" not in {word for word in parsed.text.split() if word.isdigit()}


def test_every_part_is_there_once_and_every_link_leads_somewhere(tmp_path):
    parsed = Page(render(specimen.large(tmp_path), tmp_path))
    assert len(parsed.ids) == len(set(parsed.ids))
    links = {a[1:] for a in parsed.addresses if a.startswith("#")}
    assert links <= set(parsed.ids)
    for part in ("threat", "leak", "cost", "refusals", "controls", "findings"):
        assert {f"s{i}-{part}" for i in range(1, 7)} <= links


@pytest.mark.parametrize("verdict", ["leaks", "no leak found", "not shown", "no power"])
def test_every_verdict_is_said_in_words(verdict, tmp_path):
    result = Result(suite="one", findings=(specimen.finding(verdict=verdict),))
    assert verdict in Page(render(result, tmp_path)).text


def test_a_refusal_shows_its_four_parts_and_where(page):
    text = Page(page).text
    for part in (
        "attack 'linear_input'",
        "needs an update computed from exactly 1 example",
        "got round 0, client 3: 4 examples",
        "fix set federation.batch = 1, or use 'inverting_gradients'",
        "where no defence; Gaussian noise 0.1; clip L2 4; prune 90 % and 1 setting more",
    ):
        assert part in text


def test_what_a_finding_used_stands_beside_it(page):
    text = Page(page).text
    assert "GradInversion given the true labels" in text
    assert "4 restarts, lowest loss of the attack" in text
    assert "20 victims" in text


def test_a_control_is_shown_once_in_its_own_metric(tmp_path):
    """The control of an attack is measured in dB here, whatever the findings beside it are."""
    control = dataclasses.replace(specimen.PASSED, metric="psnr", positive=19.2, positive_low=16.7)
    items = [specimen.finding(metric=m, control=control) for m in ("ssim", "label_accuracy")]
    text = Page(render(described(*items), tmp_path)).text
    assert text.count("+19.2\u00a0dB, at least 16.7".replace("\u00a0", " ")) == 1
    assert "1,92" not in text


def test_a_control_without_a_claim_shows_no_number(tmp_path):
    result = specimen.finding(control=specimen.SILENT, verdict="no power")
    page = Page(render(Result(suite="one", findings=(result,)), tmp_path)).text
    assert page.count("no claim") == 2


def test_an_attack_without_a_control_is_named(tmp_path):
    result = described(specimen.finding(control=None))
    text = Page(render(result, tmp_path)).text
    assert "No control was run for Inverting Gradients: nothing here shows that it works" in text


def test_a_label_stands_beside_what_the_defence_says_of_itself(tmp_path):
    result = specimen.finding(defenses=("gaussian_noise std=0.1",), axes={"defenses": "noise 0.1"})
    assert (
        "noise 0.1 gaussian_noise std=0.1"
        in Page(render(Result(suite="x", findings=(result,)), tmp_path)).text
    )


def test_the_median_stands_below_the_mean(tmp_path):
    result = dataclasses.replace(specimen.finding(), median=0.583)
    assert (
        "0.62 [0.56, 0.68] median 0.58" in Page(render(Result(suite="x", findings=(result,)), tmp_path)).text
    )


def test_the_papers_other_psnr_is_said_once_beside_the_findings_in_psnr_alone(tmp_path):
    items = [specimen.finding(metric=m, attack=a) for a in ("ggl", "dlg") for m in ("psnr", "ssim")]
    output = "6.02 dB less"
    assert Page(render(described(*items), tmp_path)).text.count(output) == 1
    others = tuple(f for f in items if f.metric != "psnr")
    assert output not in Page(render(described(*others), tmp_path)).text


def test_a_structural_change_is_marked(page):
    assert Page(page).text.count("Changes the model's structure.") == 1


def test_policy(page, tmp_path):
    text = Page(page).text
    assert "Broken. Of 4 limits, 1 is broken, 1 is undecided, 1 was not measured and 1 holds." in text
    for limit in specimen.LIMITS:
        assert limit.text in text
    assert "No limits were set." in Page(render(Result(suite="none"), tmp_path)).text


@pytest.mark.parametrize(
    ("states", "said"),
    [
        (["holds", "holds"], "Every limit holds. Of 2 limits, 2 hold."),
        (["holds", "undecided"], "Not shown to hold. Of 2 limits, 1 is undecided and 1 holds."),
        (["holds", "unmeasured"], "Not shown to hold. Of 2 limits, 1 was not measured and 1 holds."),
        (["unmeasured", "broken"], "Broken. Of 2 limits, 1 is broken and 1 was not measured."),
    ],
)
def test_a_policy_holds_only_where_every_limit_does(states, said, tmp_path):
    result = Result(suite="one", limits=tuple(specimen.limit(state, "x") for state in states))
    assert said in Page(render(result, tmp_path)).text


def test_limits_of_an_older_result_are_not_shown_to_hold(tmp_path):
    result = Result(suite="one", threats=(specimen.card("a", limits={"ssim": 0.1}),))
    assert "Not shown to hold. Of 1 limit, 1 is undecided." in Page(render(result, tmp_path)).text


def test_a_strangers_attack_and_metric_look_like_ours(tmp_path):
    """Title, sentence, display, explanation: all from the cards, none from the report."""
    result = specimen.finding(attack="strange", metric="strangeness", gain=3.0, half=0.5, base=1.0)
    text = Page(render(described(result), tmp_path)).text
    assert "Without a defence, A Stranger's Attack was as strange as 4.0" in text
    assert "What strangeness is, for a lay reader." in text
    assert "strange_" not in text


def test_an_older_result_without_cards_keeps_registered_names(tmp_path):
    result = specimen.finding(attack="strange", metric="my_metric")
    text = Page(render(Result(suite="x", findings=(result,)), tmp_path)).text
    assert "strange scored 0.62 [0.56, 0.68] on my metric" in text


def test_victims_have_a_table(tmp_path):
    result = specimen.finding(victims=specimen.VICTIMS)
    text = Page(render(described(result), tmp_path)).text
    assert "Inverting Gradients, no defence: 2 of 3 victims came out" in text
    assert "round 0, client 1, example 0 0.90 0 of 199 0.005 (0.015) came out" in text


def test_no_nan_anywhere(page):
    text = Page(page).text.lower()
    assert "nan" not in text.replace("finance", "").split()
    assert 'nan"' not in page.lower()
    assert "infinity" not in page.lower()


@pytest.mark.parametrize("field", ["value", "low", "gain_high", "baseline_value", "seconds"])
def test_a_number_that_is_none_is_refused(field, tmp_path):
    specimen.write(Result(suite="one", findings=(specimen.finding(),)), tmp_path)
    file = tmp_path / "result.json"
    number = getattr(specimen.finding(), field)
    file.write_text(file.read_text().replace(f'"{field}": {number}', f'"{field}": NaN'))
    with pytest.raises(BadFile, match="finite number"):
        write_html(tmp_path)


def test_an_exhibit_that_cannot_be_drawn_costs_only_itself(tmp_path):
    result = specimen.specimen(tmp_path)
    lines = next(e for e in result.exhibits if e.kind == "lines")
    broken = dataclasses.replace(lines, data={"x_label": "x", "y_label": "y", "series": [{"name": "a"}]})
    text = Page(render(dataclasses.replace(result, exhibits=(broken, *result.exhibits)), tmp_path)).text
    assert "This could not be shown. needs data of a lines exhibit" in text
    assert "Entropy of weight vectors" in text


def test_missing_pictures_cost_only_themselves(tmp_path):
    result = specimen.specimen(tmp_path)
    (tmp_path / "exhibits" / "ward-7.npz").unlink()
    text = Page(render(result, tmp_path)).text
    assert "This could not be shown. needs exhibits/ward-7.npz with 'images'" in text


def test_an_empty_result_is_not_good_news(tmp_path):
    text = Page(render(Result(suite="none"), tmp_path)).text
    assert "Nothing was measured" in text
    assert "This is no sign of safety." in text


def test_a_run_without_result_is_an_error(tmp_path):
    with pytest.raises(BadFile, match=r"result\.json"):
        write_html(tmp_path)


def test_a_page_that_cannot_be_written_says_so(tmp_path):
    specimen.write(Result(suite="none"), tmp_path)
    (tmp_path / "report.html").mkdir()
    with pytest.raises(BadFile, match="a place that can be written"):
        write_html(tmp_path)


def test_a_page_without_room_says_so(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    specimen.write(Result(suite="none"), tmp_path)
    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(DiskFull, match="free some space"):
        write_html(tmp_path)


def test_opens_without_torch():
    code = "import glasshouse.report, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
