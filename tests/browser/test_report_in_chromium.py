"""The page in a real browser: no error, no request, no sideways scrolling on a phone, and it prints."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import report_specimen as specimen

from glasshouse.report import compare, write_comparison, write_html

pytestmark = pytest.mark.browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
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
def browse(tmp_path_factory):
    """Run Chromium; returns what it wrote to stdout and stderr."""
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH")

    def run(page: Path, *extra: str) -> subprocess.CompletedProcess[str]:
        profile = tmp_path_factory.mktemp("profile")
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *extra, page.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)

    return run


@pytest.fixture(scope="module", params=["specimen", "large", "comparison"])
def page(request, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp(request.param)
    if request.param == "comparison":
        return write_comparison(compare(specimen.specimen(run), specimen.large(run)), run / "compare.html")
    result = specimen.specimen(run) if request.param == "specimen" else specimen.large(run)
    return write_html(specimen.write(result, run))


def console(stderr: str) -> list[str]:
    """What the page wrote to the console; a refused request and a broken rule end up there too."""
    return re.findall(r"CONSOLE[^\n]*", stderr)


def test_no_console_error(browse, page):
    out = browse(page, "--dump-dom")
    assert console(out.stderr) == []
    assert "</html>" in out.stdout


def test_a_console_error_is_noticed(browse, tmp_path):
    (tmp_path / "bad.html").write_text(
        "<!doctype html><meta http-equiv=Content-Security-Policy content=\"default-src 'none'\">"
        "<img src='https://example.invalid/x.png'>"
    )
    assert console(browse(tmp_path / "bad.html", "--dump-dom").stderr) != []


def test_no_sideways_scrolling_on_a_phone(browse, page):
    frame = page.with_name("phone.html")
    frame.write_text(PHONE.format(name=page.name))
    dom = browse(frame, "--allow-file-access-from-files", "--window-size=500,900", "--dump-dom").stdout
    assert re.search(r'data-scroll="(\d+)"', dom)[1] == "360"
    assert re.search(r'data-wide="([^"]*)"', dom)[1] == ""


def test_a_page_that_is_too_wide_is_noticed(browse, tmp_path):
    (tmp_path / "wide.html").write_text("<!doctype html><div style='width:400px'>x</div>")
    (tmp_path / "phone.html").write_text(PHONE.format(name="wide.html"))
    dom = browse(tmp_path / "phone.html", "--allow-file-access-from-files", "--dump-dom").stdout
    assert re.search(r'data-wide="([^"]*)"', dom)[1] != ""


def pages(browse, page: Path) -> int:
    target = page.with_suffix(".pdf")
    browse(page, f"--print-to-pdf={target}", "--no-pdf-header-footer")
    data = target.read_bytes()
    assert data.startswith(b"%PDF")
    return len(re.findall(rb"/Type\s*/Page\b", data))


def test_prints(browse, page):
    assert pages(browse, page) >= 2


def test_prints_what_is_folded_on_screen(browse, tmp_path):
    """On paper there is nothing to click, so folded parts are printed as well."""
    whole = write_html(specimen.write(specimen.specimen(tmp_path), tmp_path))
    folded = tmp_path / "folded.html"
    folded.write_text(whole.read_text().replace("details::details-content", "details::nothing"))
    assert pages(browse, whole) > pages(browse, folded) + 2


@pytest.mark.parametrize("size", ["1200,1400", "500,900"])
def test_draws(browse, page, size):
    target = page.with_name("shot.png")
    browse(page, f"--window-size={size}", f"--screenshot={target}")
    assert target.stat().st_size > 20_000
