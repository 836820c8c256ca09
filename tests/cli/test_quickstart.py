"""The page that everybody sees first: what it weighs, and that it waits for no network and no script."""

import re

import pytest

from glasshouse.cli import main

MOST = 1_500_000
"""Bytes of the quickstart's page; a mail or a browser on a train takes as much."""


@pytest.mark.slow
def test_the_quickstarts_page_is_light_and_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["audit", "quickstart", "--out", "run"])
    assert stop.value.code == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert len(page.encode()) <= MOST
    assert re.findall(r"""(?:src|href)=["']https?:""", page) == []
    assert page.index("</main>") < page.index("<script"), "all of it is read before the script runs"
    for words in ("Private data came out", "not tested", "Severity 4 of 4: whole examples", "What to do"):
        assert words in page
