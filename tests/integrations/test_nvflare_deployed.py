"""Hostile jobs of FLARE in a real deployment: a server and a site over the loopback.

A relay keeps every byte that the site sends, and the server's own code writes down what reached it.
"""

import pickle

import numpy as np
import pytest

pytest.importorskip("nvflare")

from flare_deployment import EXECUTOR, POLICY, Federation
from gate_deployment import note_row
from gate_world import deeds
from test_flower_gate import EMPTIED, REFUSED, forms

from glasshouse.gate.log import read_public_key, verify
from glasshouse.integrations.nvflare.launch import app_digest

pytestmark = pytest.mark.slow

OF_FLOWER = {"exception", "record_name", "stype"}
"""Deeds in names that only Flower has, and the one that ends a script."""
REFUSED_HERE = {deed: rule for deed, rule in REFUSED.items() if deed not in OF_FLOWER}
EMPTIED_HERE = [deed for deed in EMPTIED if deed != "minus_zero"] + ["minus_zero"]
LIST = ["honest", *REFUSED_HERE, *EMPTIED_HERE, "same_again", "analytics", "honest"]
LATE = {"path": "late.LateHandler", "id": "late"}
EVENTS = {
    "path": "nvflare.app_common.widgets.convert_to_fed_event.ConvertToFedEvent",
    "id": "events",
    "args": {},
}
INSIDE = {
    "tasks": ["train"],
    "executor": {"path": EXECUTOR, "args": {"execution_mode": "in_process", "task_script_path": "inside.py"}},
}
BEFORE_TRAINING = {
    "a filter of the job's own": {
        "client": {"task_result_filters": [{"tasks": ["train"], "filters": [{"path": "late.LateFilter"}]}]}
    },
    "an event handler": {"client": {"components": [LATE]}},
    "metrics as fed events": {"client": {"components": [EVENTS]}},
    "a script in the filters' process": {"client": {"executors": [INSIDE]}},
}


@pytest.fixture(scope="module")
def gated(tmp_path_factory):
    with Federation(tmp_path_factory.mktemp("gated")) as federation:
        yield federation


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """The same site without the gate: what the deeds do where nothing stops them."""
    with Federation(tmp_path_factory.mktemp("bare"), policy="") as federation:
        yield federation


def left(federation, result):
    """All bytes that the site sent while a job ran."""
    return federation.relay.since(result["begin"], result["end"])


def place(federation, result, form, deeds_done):
    """The deeds in whose turns a form of the row left."""
    begins = [line["begin"] for line in result["lines"]] + [result["end"]]
    turns = zip(deeds_done, begins, begins[1:], strict=False)
    return [deed for deed, begin, end in turns if form in federation.relay.since(begin, end)]


def marks(federation):
    return sorted(path.name for path in (federation.folder / "marks").iterdir())


def decisions(federation, result, kind="train"):
    key = read_public_key(federation.site / "gate.ed25519.pub")
    checked = verify(federation.site / "gate.jsonl", key)
    assert checked.fault == ""
    mine = [entry for entry in checked.entries if entry.get("run") == result["job"]]
    return [entry for entry in mine if entry["kind"] == kind and entry["event"] != "start"]


def tell(capsys, *words):
    with capsys.disabled():
        print("\n" + " ".join(map(str, words)), end="")


def test_every_hostile_message_of_the_list(gated, capsys):
    result = gated.run("messages", deeds=LIST, seconds=400)
    assert result["status"] == "FINISHED:COMPLETED"
    out = [entry for entry in decisions(gated, result) if entry["event"] == "out"]
    (event,) = decisions(gated, result, "event")
    assert "fed_event" in event["rules"]
    note_row("nvflare", "event", outcome="kept", rules=event["rules"], handed_in=0, left=0)
    assert len(out) == len(result["lines"]) == len(LIST)
    begins = [line["begin"] for line in result["lines"]] + [result["end"]]
    for number, (deed, entry, line) in enumerate(zip(LIST, out, result["lines"], strict=True)):
        sent = len(gated.relay.since(begins[number], begins[number + 1]))
        decided = f"{deed:14} {entry['action']:8} {','.join(sorted(set(entry['rules']))):28}"
        counts = f"in {entry['bytes_in']:7,} out {entry['bytes_out']:6,} all bytes of the turn {sent:6,}"
        tell(capsys, decided, counts)
        facts = {"rules": sorted(set(entry["rules"])), "handed_in": entry["bytes_in"], "turn": sent}
        outcome = "refused" if entry["action"] == "refused" else "sent"
        note_row("nvflare", deed, outcome=outcome, left=entry["bytes_out"], **facts)
        if deed in REFUSED_HERE:
            assert REFUSED_HERE[deed] in entry["rules"], deed
            assert line["code"] == "TASK_RESULT_FILTER_ERROR"
            assert line["bytes"] < 20  # an empty dictionary: the code stands in the headers
            assert sent < 40_000 < entry["bytes_in"]
        elif deed == "same_again":
            assert entry["rules"] == ["sent_before"]
        else:
            assert line["code"] == "OK", deed
    found = [place(gated, result, form, LIST) for form in forms(deeds.private_row(0))]
    assert found == [[]] * len(found)
    honest = pickle.loads((gated.out("messages") / "turn0.pickle").read_bytes())
    for name, array in deeds.honest(deeds.start(64), 0, 0).items():
        np.testing.assert_allclose(honest[name], array, atol=5.1e-5)


@pytest.mark.parametrize("name", BEFORE_TRAINING)
def test_a_job_that_could_act_after_the_filters_does_not_start(gated, name, capsys):
    result = gated.run(name.replace(" ", "-").replace("'", ""), **BEFORE_TRAINING[name])
    assert result["lines"] == []
    (entry,) = decisions(gated, result, "job")
    assert entry["action"] == "refused"
    assert marks(gated) == []
    sent = len(left(gated, result))
    assert sent < 8000
    tell(capsys, f"{name:34} {result['status']} {entry['rules']} all bytes {sent:,}")
    note_row("nvflare", name, outcome="not started", rules=entry["rules"], handed_in=0, left=0, turn=sent)


def test_code_that_flare_imports_by_itself_is_out_of_the_process(gated, capsys):
    """``custom/nvflare_decomposers``: imported before any component of the site, were it on the path."""
    result = gated.run(
        "serialiser", deeds=["norm"], seed=3, place={"serialiser.py": "nvflare_decomposers/serialiser.py"}
    )
    assert marks(gated) == []
    (entry,) = [entry for entry in decisions(gated, result) if entry["event"] == "out"]
    assert entry["rules"] == ["norm"]
    assert [line["code"] for line in result["lines"]] == ["TASK_RESULT_FILTER_ERROR"]
    tell(capsys, f"serialiser {result['status']} {entry['rules']} all bytes {len(left(gated, result)):,}")


def test_an_exceptions_text_stays(gated, capsys):
    result = gated.run("text", deeds=["exception"], seed=4, seconds=240)
    row = deeds.private_row(4)
    assert [line["code"] for line in result["lines"]] == ["EXECUTION_EXCEPTION"]
    assert not any(form in left(gated, result) for form in forms(row))
    kept = b"".join(path.read_bytes() for path in gated.server_kit.rglob("*") if path.is_file())
    assert row.hex().encode() not in kept
    assert "not authorized" in gated.admin("cat", "site-1", "log.txt")["error"]
    count = len(left(gated, result))
    tell(capsys, f"exception {result['status']} all bytes {count:,}")
    note_row(
        "nvflare", "exception", outcome="code alone", rules=["error_text"], handed_in=0, left=0, turn=count
    )


def test_another_app_than_approved_does_not_start(gated, capsys):
    approved = gated.job("approved", deeds=["honest"], seed=5)
    digest = app_digest(approved / "app")
    text = POLICY.replace('dataset = "test rows"', f'dataset = "test rows"\napps = ["sha256:{digest}"]')
    (gated.site / "site.toml").write_text(text)
    try:
        other = gated.run("other", deeds=["honest"], seed=6)
        right = gated.submit("approved", approved)
    finally:
        (gated.site / "site.toml").write_text(POLICY)
    assert (other["lines"], decisions(gated, other, "job")[0]["rules"]) == ([], ["app"])
    assert [line["code"] for line in right["lines"]] == ["OK"]
    tell(capsys, f"another app {other['status']}, the approved one {right['status']}")
    count = len(left(gated, other))
    note_row("nvflare", "other_app", outcome="not started", rules=["app"], handed_in=0, left=0, turn=count)


def test_a_raw_update_where_the_app_must_add_noise(gated, capsys):
    noise = '\n[out.noise]\nlayer = "head.weight"\nstd = 1e-3\n'
    (gated.site / "site.toml").write_text(POLICY + noise)
    try:
        result = gated.run("raw", deeds=["honest", "noised"], seed=11)
    finally:
        (gated.site / "site.toml").write_text(POLICY)
    out = [entry for entry in decisions(gated, result) if entry["event"] == "out"]
    assert [line["code"] for line in result["lines"]] == ["TASK_RESULT_FILTER_ERROR", "OK"]
    assert out[0]["rules"] == ["noise"]
    tell(capsys, f"raw update {result['status']} {[entry['rules'] for entry in out]}")
    note_row(
        "nvflare", "no_noise", outcome="refused", rules=out[0]["rules"], handed_in=out[0]["bytes_in"],
        left=out[0]["bytes_out"],
    )  # fmt: skip


def test_a_large_update_is_judged_before_the_server_fetches_it(gated, capsys):
    """FLARE hands large tensors on as references; the site's filters see the tensors."""
    result = gated.run("large", deeds=["norm"], seed=8, width=900)
    (entry,) = [entry for entry in decisions(gated, result) if entry["event"] == "out"]
    sent = len(left(gated, result))
    tell(capsys, f"large {result['status']} {entry['rules']} {entry['bytes_in']:,} in, all bytes {sent:,}")
    assert entry["bytes_in"] > 9_000_000
    assert (entry["rules"], sent < 200_000) == (["norm"], True)


def test_what_a_script_sends_over_flares_network_is_out_of_reach(gated, capsys):
    """Grade B: FLARE's own network carries a script's messages, past every filter."""
    result = gated.run("cell", deeds=["cell"], seed=9)
    found = deeds.private_row(9) in left(gated, result)
    tell(capsys, f"cell {result['status']}: the row left: {found}")
    assert found
    note_row("nvflare", "cell", outcome="out of reach", rules=[], handed_in=64, left=64)


def test_what_a_script_sends_by_itself_is_out_of_reach(gated, capsys):
    """Grade B: the script runs as the site's user. Only a rule of the network stops this."""
    stolen = gated.folder / "stolen"
    more = ["--address", f"127.0.0.1:{gated.relay.port}", "--key", str(gated.site / "gate.ed25519")]
    result = gated.run("socket", deeds=["socket"], seed=7, more=[*more, "--out", str(stolen)])
    assert deeds.private_row(7) in left(gated, result)
    assert b"PRIVATE KEY" in stolen.read_bytes()
    tell(capsys, f"socket {result['status']}: 64 bytes of the row left beside FLARE, and the key was read")
    note_row("nvflare", "socket", outcome="out of reach", rules=[], handed_in=64, left=64)


def test_without_the_gate_the_same_deeds_arrive(bare, capsys):
    """The control: each of these was stopped above."""
    result = bare.run("messages", deeds=["norm", "config_bytes", "nan", "analytics"], seconds=300)
    assert [line["code"] for line in result["lines"]] == ["OK"] * 4
    row = deeds.private_row(0)
    found = [form in left(bare, result) for form in forms(row)]
    late = bare.run("late", seed=1, client={"components": [LATE]})
    assert "'late': 9" in late["lines"][0]["meta"]
    code = bare.run("serialiser", seed=2, place={"serialiser.py": "nvflare_decomposers/serialiser.py"})
    text = bare.run("text", deeds=["exception"], seed=4, seconds=240)
    printed = bare.admin("cat", "site-1", f"{text['job']}/log.txt")["text"]
    assert deeds.private_row(4).hex() in printed
    tell(capsys, "without:", found, marks(bare), late["status"], code["status"], text["status"])
    assert found[:2] == [True, True]  # raw bytes in meta, and hexadecimal in the event
    assert {"handler", "imported"} <= set(marks(bare))


def test_in_the_filters_process_uploaded_code_replaces_them(tmp_path, capsys):
    """Grade C, which is what a filter in FLARE's own configuration is."""
    with Federation(tmp_path, in_process=True) as federation:
        result = federation.run("inside", client={"executors": [INSIDE]})
        assert [line["code"] for line in result["lines"]] == ["OK"]
        assert marks(federation) == ["replaced"]
        assert not [e for e in decisions(federation, result) if e["event"] == "out"]
        arrived = pickle.loads((federation.out("inside") / "turn0.pickle").read_bytes())
    size = sum(array.nbytes for array in arrived.values())
    assert float(np.abs(arrived["hidden.weight"] - deeds.start(64)["hidden.weight"]).mean()) > 0.9
    tell(capsys, f"in the process {result['status']}: {size:,} bytes of a refused update arrived, unlogged")
    note_row("nvflare", "inside", outcome="out of reach", rules=[], handed_in=size, left=size)


def test_thirty_honest_messages(tmp_path, capsys):
    with Federation(tmp_path) as federation:  # its own: the same tensors may leave a site only once
        result = federation.run("honest", deeds=["honest"] * 30, seconds=400)
        assert result["status"] == "FINISHED:COMPLETED"
        out = [e["action"] for e in decisions(federation, result) if e["event"] == "out"]
    tell(capsys, f"{len(out)} honest messages, {out.count('refused')} refused")
    assert out == ["changed"] * 30
    assert [line["code"] for line in result["lines"]] == ["OK"] * 30
