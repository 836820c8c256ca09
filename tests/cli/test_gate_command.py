"""``glasshouse gate``: keys, the policy in sentences, and the officer's page."""

import html
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import glasshouse
from glasshouse.cli.main import main
from glasshouse.cli.parts.gate_report import write_report
from glasshouse.gate.apart.bench import Payload
from glasshouse.gate.desk import Desk
from glasshouse.gate.log import Log
from glasshouse.gate.message import Origin, Outgoing
from glasshouse.gate.policy import read_policy
from glasshouse.gate.summary import Job, Summary
from glasshouse.gate.words import CHANGED, REFUSED

POLICY = """
format = 1
site = "ward-3"
dataset = "scans"
[out]
fields = ["loss"]
metrics = "round"
[out.mechanism]
clip = 1.0
noise_multiplier = 4.0
epsilon = 8.0
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "site.toml").write_text(POLICY)
    assert code("keys") == 0
    return tmp_path


def code(*arguments):
    with pytest.raises(SystemExit) as stop:
        main(["gate", *arguments])
    return stop.value.code


def filled(site, observe=False):
    policy = read_policy(site / "site.toml")
    log = Log(site / "gate.jsonl", site / "gate.ed25519")
    desk = Desk(policy, log, observe=observe)
    desk.note("start", grade="B", egress="untested: no probe")
    for n in range(3):
        arrays = {"w": np.full(10, 0.1 + n, np.float32)}
        fields = {"num-examples": 64, "loss": 0.5, **({"row": 1.0} if n == 2 else {})}
        origin = Origin(run="7", node="3", reply_to=f"m{n}", app="a" * 64)
        message = Outgoing(kind="train", origin=origin, arrays=arrays, fields=fields, bytes=40)
        desk.decide(
            message,
            {"w": np.zeros(10, np.float32)},
            lambda allowed: Payload(content=allowed, bytes=40, digest="d"),
        )
    log.close()


def test_a_policy_is_said_in_sentences(site, capsys):
    assert code("check") == 0
    said = capsys.readouterr().out
    assert "clips to 1 and adds noise of 4: at most epsilon 8" in said
    assert "Not covered by epsilon: that and when a message was sent or refused" in said
    assert "loss" in said


def test_a_policy_without_noise_promises_no_epsilon(site, capsys):
    (site / "site.toml").write_text(POLICY.partition("[out.mechanism]")[0] + "norm = 2.5\n")
    assert code("check") == 0
    assert "no epsilon holds" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["page.html", "page.md"])
def test_the_officers_page(site, capsys, name):
    filled(site)
    capsys.readouterr()
    assert code("report", "gate.jsonl", "--page", name) == 0
    said, page = capsys.readouterr().out, html.unescape((site / name).read_text())
    assert "numbers or texts that the site has not listed" in page
    assert "of at most 8" in page
    for text in (said, page):
        assert "2 messages left this site, 1 were refused" in text
        assert "Uploaded code may be able to go around the gate" in text
        assert "unlisted" in text
        assert "Data set scans: epsilon" in text


@pytest.mark.parametrize("run", ["\n# SAFE", "[a](//b)", "|x|\x1b[2J", "<b>x</b>"])
def test_a_servers_name_of_a_run_is_text_on_the_officers_page(tmp_path, run):
    """The server names runs, and the page is for the site's officer."""
    jobs = (Job(run=run, first="2026-11-28T08:00", last="2026-11-28T08:00", actions=Counter(passed=1)),)
    summary = Summary(jobs=jobs, spent=(), grade="A", sentence="", unknown=0)
    write_report(tmp_path / "page.md", summary, None, entries=1)
    page = (tmp_path / "page.md").read_text()
    assert not re.search(r"^#+ SAFE|\x1b|<b>|[^\\]\[a|[^\\]\|x", page, re.MULTILINE)
    assert {row.count(" | ") for row in page.splitlines() if row.startswith("| ")} == {5}


def test_every_rule_has_a_sentence_and_every_sentence_a_rule():
    """A rule that is only a code says nothing to a site's officer."""
    source = Path(glasshouse.__file__).parent
    files = (*source.glob("gate/**/*.py"), *source.glob("integrations/*/*.py"))
    written = [path.read_text() for path in files]
    rules = {rule for text in written for rule in re.findall(r'(?:Reason\(\s*rule=|\.refuse\()"(\w+)"', text)}
    assert rules == REFUSED.keys() | CHANGED.keys()


def test_the_report_as_json(site, capsys):
    filled(site)
    capsys.readouterr()
    assert code("report", "gate.jsonl", "--json") == 0
    table = json.loads(capsys.readouterr().out)
    assert (table["grade"], table["jobs"][0]["refused"]) == ("B", 1)
    assert 0 < table["spent"][0]["epsilon"] < 8


def test_what_left_while_it_only_observed_has_no_epsilon(site, capsys):
    filled(site, observe=True)
    assert code("report", "gate.jsonl") == 0
    said = capsys.readouterr().out
    assert "no epsilon holds; 3 of 3 updates left without" in said
    assert "3 messages left unguarded, while it only observed: 1 would have been refused" in said
    assert "would be refused by unlisted 1" in said


def test_a_changed_log_is_said_by_exit_code_one(site, capsys):
    filled(site)
    assert code("verify", "gate.jsonl") == 0
    assert code("head", "gate.jsonl") == 0
    head = capsys.readouterr().out.splitlines()[-1]
    assert code("verify", "gate.jsonl", "--head", head) == 0
    log = site / "gate.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:-1]))
    assert code("verify", "gate.jsonl") == 0
    assert code("verify", "gate.jsonl", "--head", head) == 1
    log.write_bytes(lines[0].replace(b"untested", b"closed!!"))
    assert code("verify", "gate.jsonl") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run",), "the server's address"),
        (("run", "--to", "10.0.0.1:9092", "--insecure"), "TLS beyond this machine"),
        (("run", "--to", "127.0.0.1:9092"), "a certificate for its nodes"),
        (("run", "--to", "nowhere", "--insecure"), "HOST:PORT"),
        (("report",), "a log"),
    ],
)
def test_what_is_missing_is_said(site, capsys, arguments, words):
    assert code(*arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("name", ["gate.ed25519", "gate.ed25519.pub", "gate-ca.pem", "gate-tls.pem"])
def test_keys_are_never_written_over(site, name, capsys):
    """One file that is left keeps the others from being made: half a set of keys is of no use."""
    for other in {"gate.ed25519", "gate.ed25519.pub", "gate-ca.pem", "gate-tls.pem"} - {name}:
        (site / other).unlink()
    capsys.readouterr()
    assert code("keys") == 2
    assert "no keys yet" in capsys.readouterr().err
    assert sorted(path.name for path in site.glob("gate*")) == [name]
