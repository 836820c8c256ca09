"""The gate's log and desk: every change found, a kill survived, nothing sent that is not written."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from glasshouse.errors import BadFile, DiskFull
from glasshouse.gate.apart.bench import Payload
from glasshouse.gate.arrivals import Arrival
from glasshouse.gate.desk import Desk
from glasshouse.gate.egress import FAULTS, check_egress
from glasshouse.gate.log import Log, create_key, public_path, read_public_key, verify
from glasshouse.gate.message import Origin, Outgoing
from glasshouse.gate.policy import parse_policy
from glasshouse.gate.preflight.site import Preflighter
from glasshouse.gate.summary import summarize
from glasshouse.privacy.gaussian import gaussian_epsilon

TABLE = {"format": 1, "site": "ward", "dataset": "rows", "out": {"norm": 2.5}}
MECHANISM = {"clip": 1.0, "noise_multiplier": 2.0, "epsilon": 20.0}


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "gate.ed25519"
    create_key(path)
    return path


@pytest.fixture
def log(tmp_path, key):
    log = Log(tmp_path / "gate.jsonl", key)
    yield log
    log.close()


def filled(tmp_path, key, count=20):
    log = Log(tmp_path / "gate.jsonl", key)
    for n in range(count):
        log.add({"event": "note", "value": n * 0.5})
    log.close()
    return tmp_path / "gate.jsonl", read_public_key(public_path(key))


def test_a_whole_log_verifies(tmp_path, key):
    path, public = filled(tmp_path, key)
    checked = verify(path, public)
    assert (len(checked.entries), checked.fault) == (20, "")


def test_an_entry_that_could_not_be_read_again_is_not_written(log):
    log.add({"event": "note"})
    with pytest.raises(BadFile, match="entries of at most"):
        log.add({"event": "note", "detail": "x" * 2**20})
    log.add({"event": "note"})
    assert verify(log._path, log._key.public_key()).fault == ""


def test_a_message_of_many_faults_leaves_a_log_that_is_read_again(tmp_path, key):
    """Of one that listed them all the gate could not be started again."""
    log, table = Log(tmp_path / "gate.jsonl", key), {f"m{n}": 1.0 for n in range(200_000)}
    origin = Origin(run="1", node="2", reply_to="a")
    message = Outgoing(kind="train" * 10**6, origin=origin, fields=table)
    desk = Desk(parse_policy(TABLE), log)
    assert desk.decide(message, None, lambda allowed: Payload(content=b"", bytes=0, digest=""))[1] is None
    log.close()
    (entry,) = Log(tmp_path / "gate.jsonl", key).entries
    assert {"unlisted", "kind"} <= set(entry["rules"])
    assert "and 199,990 more".replace(",", "") in entry["details"]


def test_each_of_a_thousand_single_changes_is_found(tmp_path, key):
    path, public = filled(tmp_path, key)
    whole, rng = path.read_bytes(), random.Random(0)
    for _ in range(1000):
        place = rng.randrange(len(whole))
        other = bytes([rng.choice([b for b in range(256) if b != whole[place]])])
        path.write_bytes(whole[:place] + other + whole[place + 1 :])
        assert verify(path, public).fault, (place, other)


@pytest.mark.parametrize("change", ["missing", "exchanged", "twice"])
def test_missing_exchanged_and_repeated_lines_are_found(tmp_path, key, change):
    path, public = filled(tmp_path, key)
    lines = path.read_bytes().splitlines(keepends=True)
    if change == "missing":
        del lines[4]
    elif change == "exchanged":
        lines[4], lines[5] = lines[5], lines[4]
    else:
        lines.insert(4, lines[4])
    path.write_bytes(b"".join(lines))
    assert "chain" in verify(path, public).fault


def test_a_cut_end_is_found_only_against_a_kept_head(tmp_path, key):
    path, public = filled(tmp_path, key)
    head = verify(path, public).head
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-3]))
    assert verify(path, public).fault == ""
    assert "cut off" in verify(path, public, head=head).fault


def test_a_torn_line_is_set_aside_and_said(tmp_path, key):
    path, public = filled(tmp_path, key, 3)
    with path.open("ab") as file:
        file.write(b'{"entry": {"event": "ou')
    Log(path, key).close()
    entries = verify(path, public).entries
    assert [entry["event"] for entry in entries] == ["note"] * 3 + ["torn"]
    assert (tmp_path / "gate.jsonl.torn").read_bytes() == b'{"entry": {"event": "ou\n'


def test_a_changed_log_is_not_continued(tmp_path, key):
    path, _ = filled(tmp_path, key)
    path.write_bytes(path.read_bytes().replace(b'"value": 2.0', b'"value": 2.5'))
    with pytest.raises(BadFile, match="unbroken chain"):
        Log(path, key)


def test_one_process_writes(tmp_path, key, log):
    with pytest.raises(BadFile, match="another process"):
        Log(tmp_path / "gate.jsonl", key)


def test_another_name_of_the_log_has_the_same_writer(tmp_path, key, log):
    (tmp_path / "other.jsonl").symlink_to(tmp_path / "gate.jsonl")
    with pytest.raises(BadFile, match="another process writes it"):
        Log(tmp_path / "other.jsonl", key)


def test_keys_are_their_owners(tmp_path, key):
    assert key.stat().st_mode & 0o077 == 0
    key.chmod(0o640)
    with pytest.raises(BadFile, match="others may read"):
        Log(tmp_path / "gate.jsonl", key)
    with pytest.raises(BadFile):
        create_key(key)


WRITER = """
import sys
from pathlib import Path
from glasshouse.gate.log import Log
log, sent = Log(Path(sys.argv[1]), Path(sys.argv[2])), Path(sys.argv[3]).open("a")
n = 0
while True:
    entry = log.add({"event": "out", "value": n})
    sent.write(f"{entry['n']}\\n")  # stands for sending: only what is written may be sent
    sent.flush()
    n += 1
"""


@pytest.mark.slow
def test_twenty_kills_leave_the_chain_whole_and_nothing_unwritten(tmp_path, key):
    path, sent, rng = tmp_path / "gate.jsonl", tmp_path / "sent", random.Random(0)
    for _ in range(20):
        command = [sys.executable, "-c", WRITER, str(path), str(key), str(sent)]
        process = subprocess.Popen(command)
        size = path.stat().st_size if path.exists() else 0
        while process.poll() is None and (not path.exists() or path.stat().st_size == size):
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.05))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    checked = verify(path, read_public_key(public_path(key)))
    assert checked.fault == ""
    written = {entry["n"] for entry in checked.entries}
    lines = [line for line in sent.read_text().split("\n") if line]
    assert len(lines) > 20
    assert {int(line) for line in lines} <= written


# The desk.


def outgoing(n=0, **more):
    arrays = {"w": np.full(10, 0.1 + n / 100, np.float32)}
    origin = Origin(run="7", node="3", reply_to=f"m{n}", app="a" * 64)
    return Outgoing(kind="train", origin=origin, **{"arrays": arrays, "bytes": 40, **more})


RECEIVED = {"w": np.zeros(10, np.float32)}


def encode(message):
    return Payload(content=message, bytes=40, digest="d")


def test_a_decision_is_written_before_it_is_handed_out(log):
    desk = Desk(parse_policy(TABLE), log)
    decision, payload = desk.decide(outgoing(), RECEIVED, encode)
    assert (decision.action, payload.bytes) == ("passed", 40)
    assert log.entries == ()  # as it was opened; the new line is in the file
    refused, none = desk.decide(outgoing(1, oddities=()), {}, encode)
    assert (refused.action, none) == ("refused", None)


def test_what_fails_is_refused_and_its_text_is_not_written(tmp_path, log, key):
    def fails(message):
        raise RuntimeError("a row of data")

    decision, payload = Desk(parse_policy(TABLE), log).decide(outgoing(), RECEIVED, fails)
    assert ([r.rule for r in decision.reasons], payload) == (["gate_failed"], None)
    assert "a row of data" not in (tmp_path / "gate.jsonl").read_text()


def test_with_a_full_disk_nothing_is_handed_out(log, monkeypatch, tmp_path, key):
    desk = Desk(parse_policy(TABLE), log)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(DiskFull, match="nothing leaves"):
            desk.decide(outgoing(), RECEIVED, encode)
    desk.decide(outgoing(), RECEIVED, encode)
    checked = verify(tmp_path / "gate.jsonl", read_public_key(public_path(key)))
    assert (len(checked.entries), checked.fault) == (1, "")


def test_budgets_survive_a_restart(tmp_path, key):
    policy = parse_policy({**TABLE, "budget": {"rounds": 2}})
    for n, expected in enumerate(["passed", "passed", "refused"]):
        log = Log(tmp_path / "gate.jsonl", key)
        assert Desk(policy, log).decide(outgoing(n), RECEIVED, encode)[0].action == expected
        log.close()


def test_observing_writes_what_would_have_been_done_and_spends_no_budget(tmp_path, log, key):
    policy = parse_policy({**TABLE, "budget": {"rounds": 1}})
    desk = Desk(policy, log, observe=True)
    for n in range(2):
        desk.decide(outgoing(n), RECEIVED, encode)
    entries = verify(tmp_path / "gate.jsonl", read_public_key(public_path(key))).entries
    assert [(e["action"], e["would"]) for e in entries] == [("observed", "passed"), ("observed", "refused")]
    summary = summarize(entries, policy)
    assert (summary.spent[0].epsilon, summary.spent[0].bare) == (None, 2)


def test_the_summary_counts_by_job_and_by_rule(tmp_path, log, key):
    policy = parse_policy({**TABLE, "out": {"mechanism": MECHANISM}})
    desk = Desk(policy, log)
    desk.note("start", grade="B", egress="untested: x")
    for n in range(3):
        desk.decide(outgoing(n), RECEIVED, encode)
    desk.decide(outgoing(4, fields={"row": 1.0}), RECEIVED, encode)
    summary = summarize(verify(tmp_path / "gate.jsonl", read_public_key(public_path(key))).entries, policy)
    (job,), (spent,) = summary.jobs, summary.spent
    assert dict(job.actions) == {"changed": 3, "refused": 1}
    assert dict(job.refusals) == {"unlisted": 1}
    assert (job.bytes_out, spent.releases, spent.bare, summary.grade) == (120, 3, 0, "B")
    assert spent.epsilon == job.epsilon == pytest.approx(gaussian_epsilon(3**0.5, delta=1e-5))


# What arrives.


def arrival(**more):
    origin = Origin(run="7", node="3", app="a" * 64)
    return Arrival(**{"kind": "train", "origin": origin, "bytes": 40, **more})


@pytest.mark.parametrize(
    ("tables", "more", "arrays", "rule"),
    [
        ({}, {}, RECEIVED, None),
        ({}, {"kind": "query"}, RECEIVED, "kind"),
        ({}, {"documents": 100_000}, RECEIVED, "documents"),
        ({}, {}, {"w": np.full(10, np.nan, np.float32)}, "not_finite"),
        ({}, {}, {"w": np.zeros(11, np.float32)}, "other_model"),
        ({}, {}, {"w": np.zeros(10, np.int32)}, "other_model"),
        ({}, {}, {"w": np.zeros(10)}, None),  # Flower's secure sums end in 64 bits
        ({}, {"broken": "the sum is of 2 clients"}, RECEIVED, "secure_terms"),
        ({"in": {"norm_step": 1.0}}, {}, {"w": np.ones(10, np.float32)}, "norm_step"),
        ({"budget": {"largest": 39}}, {}, RECEIVED, "too_large"),
        ({"apps": [f"sha256:{'b' * 64}"]}, {}, RECEIVED, "app"),
    ],
)
def test_what_the_server_sends_is_limited(tmp_path, key, tables, more, arrays, rule):
    log = Log(tmp_path / "gate.jsonl", key)
    Desk(parse_policy(TABLE), log).arrive(arrival(), RECEIVED)
    desk = Desk(parse_policy({**TABLE, **tables}), log)
    if not tables.keys() & {"budget", "apps"}:
        assert desk.arrive(arrival(), RECEIVED) == []
    assert [r.rule for r in desk.arrive(arrival(**more), arrays)] == ([rule] if rule else [])
    log.close()


# The rule of the network.


@pytest.fixture
def server():
    code = (
        "import http.server as h; s = h.HTTPServer(('127.0.0.1', 0), None); print(s.server_port, flush=True)"
    )
    code += "; import time; time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        yield int(process.stdout.readline())
        process.kill()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def egress(tmp_path, probe, port):
    policy = parse_policy({**TABLE, "egress": {"probe": probe}}, folder=tmp_path)
    return check_egress(policy, ("127.0.0.1", port), ("127.0.0.1", free_port()))


def test_apps_that_reach_the_server_are_seen(tmp_path, key, server):
    seen = egress(tmp_path, ["env"], server)
    assert (seen.state, seen.grade) == ("open", "B")
    assert set(seen.faults) == set(FAULTS.values())


def test_a_dead_server_is_no_rule(tmp_path, key):
    seen = egress(tmp_path, ["env"], 1)
    assert (seen.state, seen.grade) == ("untested", "B")
    assert seen.fix.startswith("start the server at")


def test_without_a_probe_nothing_is_known(tmp_path, key, server):
    assert egress(tmp_path, [], server).state == "untested"
    assert egress(tmp_path, ["no-such-program"], server).state == "untested"


def _isolates():
    tried = subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False)
    return tried.returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or not _isolates(), reason="needs 'unshare -n'"
)
def test_apps_without_a_network_and_under_another_user_are_grade_a(tmp_path, key, server):
    probe = ["unshare", "-n", "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    seen = egress(tmp_path, probe, server)
    if seen.state == "untested":  # the interpreter may not be readable for that user
        pytest.skip(seen.sentence)
    assert (seen.state, seen.faults, seen.grade) == ("closed", (), "A")


def test_entries_are_json_without_surprises(tmp_path, key, log):
    Desk(parse_policy(TABLE), log).decide(outgoing(), RECEIVED, encode)
    line = (tmp_path / "gate.jsonl").read_text().splitlines()[0]
    entry = json.loads(line)["entry"]
    assert {"n", "time", "before", "event", "action", "rules", "got", "sent", "bytes_out"} <= entry.keys()


LOADER = """
import torch
from torch import nn
def load():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
    return network, torch.rand(8, 1, 8, 8), torch.arange(8) % 4
"""


@pytest.mark.slow
@pytest.mark.parametrize(("examples", "noise", "expected"), [(1, 0.0, ["preflight"]), (8, 3.0, [])])
def test_preflight_refuses_an_update_that_shows_an_example(tmp_path, examples, noise, expected):
    torch = pytest.importorskip("torch")
    (tmp_path / "site_data.py").write_text(LOADER)
    scope = {}
    exec(LOADER, scope)
    network, inputs, labels = scope["load"]()
    received = {n: p.detach().numpy().copy() for n, p in network.named_parameters()}
    if examples == 1:
        inputs, labels = inputs[:1], labels[:1]
    loss = torch.nn.functional.cross_entropy(network(inputs), labels)
    steps = torch.autograd.grad(loss, list(network.parameters()))
    rng = np.random.default_rng(0)
    sent = {
        name: (array - 0.1 * step.numpy() + noise * rng.standard_normal(array.shape)).astype(np.float32)
        for (name, array), step in zip(received.items(), steps, strict=True)
    }
    rule = parse_policy(
        {**TABLE, "out": {"norm": 1e9, "preflight": {"loader": "site_data:load"}}}
    ).out.preflight
    assert [reason.rule for reason in Preflighter(rule, tmp_path)(sent, received)] == expected


@pytest.mark.slow
def test_a_preflight_that_fails_or_takes_too_long_refuses(tmp_path):
    (tmp_path / "site_data.py").write_text("def load():\n    raise RuntimeError\n")
    table = {"norm": 1e9, "preflight": {"loader": "site_data:load", "seconds": 0.2}}
    rule = parse_policy({**TABLE, "out": table}).out.preflight
    assert [r.rule for r in Preflighter(rule, tmp_path)(RECEIVED, RECEIVED)] == ["preflight_unclear"]
    slow = rule.model_copy(update={"seconds": 60.0})
    assert [r.detail for r in Preflighter(slow, tmp_path)(RECEIVED, RECEIVED)] == ["the check failed"]
