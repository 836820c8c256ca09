"""The page in a real browser: no error, no request, no sideways scrolling on a phone, dark, and printed."""

import dataclasses
import html
import json
import re
import subprocess
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import report_specimen as specimen
import torch
from PIL import Image
from report_cards import described
from safetensors.torch import save_file

from glasshouse.cli.guard import guard
from glasshouse.report.compare import compare, write_comparison
from glasshouse.report.html import write_html

pytestmark = pytest.mark.browser

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--allow-file-access-from-files",
    "--enable-logging=stderr",
)
WIDTHS = (390, 1280)
DARK = ("--force-dark-mode", "--blink-settings=preferredColorScheme=0")
# A frame of each width around the page; what is found out about the pages is left in the document.
FRAMES = """<!doctype html>{frames}<script>addEventListener("load", () => {{
  const found = document.body.dataset;
  const page = [...document.querySelectorAll("iframe")].map((frame) => {{
    const page = frame.contentDocument, width = frame.clientWidth;
    const inside = (e) => e.closest(".scroll, .hidden, .skip");
    const wide = [...page.querySelectorAll("body *")].filter(
      (e) => !inside(e) && e.getBoundingClientRect().right > width + 1);
    found["scroll" + width] = page.documentElement.scrollWidth;
    found["wide" + width] = wide.map((e) => e.tagName + "." + e.getAttribute("class")).join(" ");
    return page;
  }}).pop();
  {more}
}});</script>"""
FRAME = '<iframe src="{}" style="width:{}px;height:800px;border:0"></iframe>'
FITS = {"scroll390": "390", "wide390": "", "scroll1280": "1280", "wide1280": ""}
CSV = """const save = (box) => {
    const link = box.previousSibling.querySelector("a");
    link.addEventListener("click", (event) => event.preventDefault());
    link.click();
    return link.download + " " + decodeURIComponent(link.href);
  };"""


@pytest.fixture(scope="module")
def browse(chromium, tmp_path_factory):
    """Run Chromium; returns what it wrote to stdout and stderr."""

    def run(page: Path, *extra: str) -> subprocess.CompletedProcess[str]:
        profile = tmp_path_factory.mktemp("profile")
        command = [chromium, *FLAGS, f"--user-data-dir={profile}", *extra, page.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=400, check=True)

    return run


def console(stderr: str) -> list[str]:
    """What the page wrote to the console; a refused request and a broken rule end up there too."""
    return re.findall(r"CONSOLE[^\n]*", stderr)


def look(browse, page: Path, more: str = "") -> tuple[list[str], dict[str, str]]:
    """Console and what the frames found: widths, elements that stick out, and ``more`` of the widest."""
    frames = "".join(FRAME.format(page.name, width) for width in WIDTHS)
    place = page.with_name("frames.html")
    place.write_text(FRAMES.format(frames=frames, more=more))
    out = browse(place, "--window-size=1400,900", "--dump-dom")
    body = re.search(r"<body([^>]*)>", out.stdout)[1]
    return console(out.stderr), {k: html.unescape(v) for k, v in re.findall(r'data-(\w+)="([^"]*)"', body)}


def make_page(kind: str, place: Path) -> Path:
    """A page of each kind that the program writes."""
    if kind == "comparison":
        before, after = specimen.specimen(place), specimen.large(place)
        worse = dataclasses.replace(after, findings=(*before.findings[3:], *after.findings))
        return write_comparison(compare(before, worse), place / "compare.html")
    if kind == "guard":
        models = {"clean": torch.randn(64, 64), "a-name-that-goes-on-" * 4: torch.zeros(64, 64)}
        for name, weight in models.items():
            save_file({"layer.weight": weight}, place / f"{name}.safetensors")
        assert guard(sorted(place.glob("*.safetensors")), page=place / "guard.html") == 1
        return place / "guard.html"
    return write_html(specimen.write(getattr(specimen, kind)(place), place))


@pytest.mark.parametrize("kind", ["large", "comparison"])
def test_quiet_and_no_wider_than_the_screen(kind, browse, tmp_path):
    assert look(browse, make_page(kind, tmp_path)) == ([], FITS)


def test_printed_pages_are_no_wider_than_the_paper(browse, tmp_path):
    """A4 less its margins is 688 pixels wide; the style for paper is put on screen to be measured."""
    page = make_page("specimen", tmp_path)
    page.write_text(page.read_text().replace("@media print", "@media all"))
    frame = tmp_path / "frame.html"
    frame.write_text(FRAMES.format(frames=FRAME.format(page.name, 688), more=""))
    found = browse(frame, "--window-size=800,900", "--dump-dom").stdout
    assert 'data-scroll688="688"' in found
    wide = re.search(r'data-wide688="([^"]*)"', found)[1]
    assert re.findall(r"[A-Z]+\.", wide) == []  # names of ticks may reach into the margin


def test_a_page_that_asks_the_network_or_is_too_wide_is_noticed(browse, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text(
        "<!doctype html><meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src "
        "'unsafe-inline'\"><div style='width:400px'>x</div><img src='https://example.invalid/x.png'>"
    )
    messages, seen = look(browse, page)
    assert messages != []
    assert "DIV" in seen["wide390"]
    assert seen["wide1280"] == ""


def test_the_guards_page_uses_the_width_of_the_screen(browse, tmp_path):
    """It stood in the narrow column that the report keeps for its contents."""
    page = make_page("guard", tmp_path)
    messages, seen = look(
        browse, page, "found.main = page.querySelector('main').getBoundingClientRect().width;"
    )
    assert float(seen.pop("main")) > 1000
    assert (messages, seen) == ([], FITS)
    assert "Do not train on 1 of 2 models" in page.read_text()


def test_first_screen_and_tables_that_sort_filter_and_download(browse, tmp_path):
    more = (
        CSV
        + """
    found.bottom = page.querySelector(".leaks-list li:nth-child(2) .todo").getBoundingClientRect().bottom;
    const box = page.querySelector("[aria-label='Utility and leakage by setting']");
    const shown = (i) => [...box.querySelectorAll("tbody tr:not([hidden])")].map((r) => r.cells[i].innerText);
    const click = (i) => box.querySelectorAll("th button")[i].click();
    click(2); found.up = shown(0); click(2); found.down = shown(0);
    const find = box.previousSibling.querySelector("input");
    find.value = "CLIP"; find.dispatchEvent(new Event("input"));
    found.kept = shown(1); found.csv = save(box);"""
    )
    messages, seen = look(browse, make_page("specimen", tmp_path), more)
    assert messages == []
    assert FITS.items() <= seen.items()
    assert float(seen["bottom"]) < 900  # of a screen of 1280 × 900
    assert (seen["up"], seen["down"]) == ("5,3,4,2,1", "1,2,3,4,5")  # 3 and 4 are equal
    assert seen["kept"] == "clip L2 4"
    head, row = seen["csv"].strip().splitlines()
    assert head.startswith("Utility-and-leakage-by-setting.csv data:text/csv;charset=utf-8,")
    assert head.endswith(
        '"no.","setting","held-out accuracy","guarantee","strongest attack","gain","verdict"'
    )
    assert row.startswith('"2","clip L2 4","60 % [57, 63]"')


def test_one_victim_alone_and_no_cell_that_a_spreadsheet_takes_for_a_formula(browse, tmp_path):
    defenses = ((), ("=1+1",))
    findings = [specimen.finding(defenses=d, victims=specimen.VICTIMS) for d in defenses]
    page = write_html(specimen.write(described(*findings), tmp_path))
    more = (
        CSV
        + """
    const choice = page.querySelector(".victims select");
    choice.value = "round 0, client 1, example 0"; choice.dispatchEvent(new Event("change"));
    found.rows = [...page.querySelectorAll(".victims tbody tr:not([hidden])")].map((r) => r.innerText);
    found.csv = save(page.querySelector("[aria-label^='All findings']"));"""
    )
    _, seen = look(browse, page, more)
    assert re.findall(r"client \d", seen["rows"]) == ["client 1", "client 1"]
    assert '"\'=1+1"' in seen["csv"]


def test_prints_what_is_folded_on_screen(browse, tmp_path):
    """On paper there is nothing to click, so folded parts are printed as well."""

    def pages(page: Path) -> int:
        target = page.with_suffix(".pdf")
        browse(page, f"--print-to-pdf={target}", "--no-pdf-header-footer")
        data = target.read_bytes()
        assert data.startswith(b"%PDF")
        return len(re.findall(rb"/Type\s*/Page\b", data))

    whole = write_html(specimen.write(specimen.specimen(tmp_path), tmp_path))
    folded = tmp_path / "folded.html"
    folded.write_text(whole.read_text().replace("details::details-content", "details::nothing"))
    assert pages(whole) > pages(folded) + 2


def test_follows_the_reader_into_the_dark(browse, tmp_path):
    page = write_html(specimen.write(specimen.specimen(tmp_path), tmp_path))

    def brightness(*extra: str) -> float:
        shot = tmp_path / "shot.png"
        browse(page, "--window-size=1200,1400", f"--screenshot={shot}", *extra)
        return float(np.asarray(Image.open(shot).convert("L")).mean())

    assert brightness() > 220
    assert brightness(*DARK) < 50


def barriers(browse, page: Path, *extra: str) -> list[str]:
    """The serious and critical findings of axe-core; its script may run only without the page's policy."""
    axe = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    look = (
        "axe.run().then((r) => { document.body.dataset.barriers = JSON.stringify(r.violations"
        '.filter((v) => ["serious", "critical"].includes(v.impact))'
        '.map((v) => v.id + " " + v.nodes[0].html)); })'
    )
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    open_page = page.with_name("open.html")
    open_page.write_text(text.replace("</body>", f"<script>{axe}</script><script>{look}</script></body>"))
    out = browse(open_page, "--virtual-time-budget=60000", "--dump-dom", *extra).stdout
    return json.loads(html.unescape(re.search(r'<body[^>]* data-barriers="([^"]*)"', out)[1]))


@pytest.mark.parametrize("kind", ["specimen", "comparison", "guard"])
def test_no_serious_barrier_for_a_screen_reader_or_a_keyboard(kind, browse, tmp_path):
    page = make_page(kind, tmp_path)
    assert barriers(browse, page) == []
    assert barriers(browse, page, *DARK) == []


def test_a_barrier_is_noticed(browse, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text("<!doctype html><html lang=en><title>x</title><body><button></button></body></html>")
    assert [text.split()[0] for text in barriers(browse, page)] == ["button-name"]
