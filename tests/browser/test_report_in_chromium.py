"""The page in a real browser: no error, no request, no sideways scrolling on a phone, dark, and printed."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import report_specimen as specimen
from PIL import Image

from glasshouse.report import compare, write_comparison, write_html

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
# A frame of the width of a phone around the page, which measures it and leaves the result in the document.
PHONE = """<!doctype html><iframe id="f" src="{name}" style="width:360px;height:800px;border:0"></iframe>
<script>addEventListener("load", () => {{
  const page = document.getElementById("f").contentDocument;
  const inside = (e) => e.closest(".scroll, .hidden, .skip");
  const wide = [...page.querySelectorAll("body *")].filter(
    (e) => !inside(e) && e.getBoundingClientRect().right > 361);
  document.body.dataset.scroll = page.documentElement.scrollWidth;
  document.body.dataset.wide = wide.map((e) => e.tagName + "." + e.getAttribute("class")).join(" ");
}});</script>"""


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


def on_a_phone(browse, page: Path) -> tuple[list[str], str, str]:
    """Console, width of the whole page, and elements that stick out where nothing scrolls."""
    frame = page.with_name("phone.html")
    frame.write_text(PHONE.format(name=page.name))
    out = browse(frame, "--window-size=500,900", "--dump-dom")
    scroll, wide = (re.search(rf'data-{key}="([^"]*)"', out.stdout)[1] for key in ("scroll", "wide"))
    return console(out.stderr), scroll, wide


@pytest.mark.parametrize("kind", ["specimen", "large", "comparison"])
def test_quiet_and_no_wider_than_a_phone(kind, browse, tmp_path):
    if kind == "comparison":
        both = compare(specimen.specimen(tmp_path), specimen.large(tmp_path))
        page = write_comparison(both, tmp_path / "compare.html")
    else:
        page = write_html(specimen.write(getattr(specimen, kind)(tmp_path), tmp_path))
    assert on_a_phone(browse, page) == ([], "360", "")


def test_a_page_that_asks_the_network_or_is_too_wide_is_noticed(browse, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text(
        "<!doctype html><meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src "
        "'unsafe-inline'\"><div style='width:400px'>x</div><img src='https://example.invalid/x.png'>"
    )
    messages, _, wide = on_a_phone(browse, page)
    assert messages != []
    assert "DIV" in wide


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
    assert brightness("--force-dark-mode", "--blink-settings=preferredColorScheme=0") < 50
