"""The gate in a real deployment: SuperLink, gate, SuperNodes and an app over the loopback.

A relay between gate and SuperLink keeps every byte that leaves, so what leaves is not told by the gate alone.
"""

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
from gate_deployment import POLICY, deployed, kill, note_row
from gate_world import deeds
from scipy.stats import binomtest, norm
from test_flower_gate import EMPTIED, OWN, REFUSED, forms
from test_flower_run import BIN, started, wait_for

from glasshouse.gate.log import read_public_key, verify
from glasshouse.gate.summary import summarize
from glasshouse.integrations.flower_gate import names
from glasshouse.privacy.gaussian import gaussian_epsilon
from glasshouse.privacy.one_run import Guesses, gaussian_run_epsilon
from glasshouse.transcript.files import read_transcript

pytestmark = pytest.mark.slow
SECAGG = Path(__file__).parents[2] / "examples/flower-secagg"


def check_log(deployment):
    """The log must verify, through the command too."""
    key = read_public_key(deployment.site / "gate.ed25519.pub")
    checked = verify(deployment.site / "gate.jsonl", key)
    assert checked.fault == ""
    policy = str(deployment.site / "site.toml")
    said = deployment.call("gate", "verify", str(deployment.site / "gate.jsonl"), "--policy", policy).stdout
    assert "chain and signatures whole" in said
    return checked.entries


def test_every_hostile_app_of_the_list(tmp_path, capsys):
    """Each in one round of its own, with the bytes that left in it."""
    tried = ["honest", *REFUSED, *EMPTIED, "same_again", "same_again", "honest"]
    with deployed(tmp_path) as deployment:
        lines = deployment.run(tried)
        row = deeds.private_row(0)
        everything = deployment.relay.since(0)
        assert not any(form in everything for form in forms(row))
        ends = [line["begin"] for line in lines[1:]] + [float("inf")]
        rows = []
        for line, end in zip(lines, ends, strict=True):
            # heartbeats and polls of the round are counted, too
            rows.append((line["deed"], "error" in line, len(deployment.relay.since(line["begin"], end))))
        out = [entry for entry in check_log(deployment) if entry["event"] == "out"]
        delivered = [e["bytes"] for e in deployment.log() if e["event"] == "delivered"]
    with capsys.disabled():
        for (deed, refused, count), entry, own in zip(rows, out, delivered, strict=True):
            print(
                f"\n{deed:14} {'refused' if refused else 'arrived'} {','.join(entry['rules']):16} "
                f"handed in {entry['bytes_in']:7,} sent {own:7,} all bytes of the round {count:7,}",
                end="",
            )
    for (deed, refused, _), entry, own in zip(rows, out, delivered, strict=True):
        note_row(
            "flower", deed, outcome="refused" if refused else "sent", rules=entry["rules"],
            handed_in=entry["bytes_in"], left=own,
        )  # fmt: skip
    by_deed = dict(zip([line["deed"] for line in lines], zip(rows, delivered, strict=True), strict=True))
    for deed in REFUSED:
        (_, refused, _), own = by_deed[deed]
        assert refused, deed
        assert own < OWN
    for deed in ("honest", *EMPTIED):
        assert not by_deed[deed][0][1], deed
    assert [e["rules"] for e in out if "sent_before" in e["rules"]] == [["sent_before"]] * 2
    arrived = np.load(tmp_path / "out0/arrived.npz")
    start = deeds.start(64)
    honest = deeds.honest(start, 0, 0)
    for name, array in arrived.items():
        turn, _, tensor = name.split("/")
        if turn == "0":
            np.testing.assert_allclose(array, honest[tensor], atol=5.1e-5)


def test_a_raw_update_where_the_app_must_add_noise(tmp_path):
    """An app whose noise was taken out, and one with it."""
    noise = '\n[out.noise]\nlayer = "head.weight"\nstd = 1e-3\n\n[egress]'
    with deployed(tmp_path, policy=POLICY.replace("[egress]", noise)) as deployment:
        lines = deployment.run(["honest", "noised"])
        out = [entry for entry in check_log(deployment) if entry["event"] == "out"]
        delivered = [e["bytes"] for e in deployment.log() if e["event"] == "delivered"]
    assert ["error" in line for line in lines] == [True, False]
    assert (out[0]["rules"], delivered[0] < OWN) == (["noise"], True)
    note_row(
        "flower", "no_noise", outcome="refused", rules=out[0]["rules"], handed_in=out[0]["bytes_in"],
        left=delivered[0],
    )  # fmt: skip


def test_a_second_answer_in_the_nodes_name(tmp_path):
    """Announced to the gate with the node's own headers, after its answer has left."""
    seen = {}

    def again(deployment, arrived):
        wait_for(
            lambda: any(e["event"] == "delivered" for e in deployment.log()), seconds=300, what="an answer"
        )
        out = next(entry for entry in deployment.log() if entry["event"] == "out")
        tree = names.ProtoTree(object_id="a" * 64)
        request = names.CALLS["push-messages"].request(message_object_trees=[tree])
        message = request.messages_list.add()
        message.metadata.run_id, message.metadata.message_id = int(out["run"]), tree.object_id
        message.metadata.reply_to_message_id = out["reply_to"]
        request.node.node_id = int(out["node"])
        sent = deployment.relay.since(0).lower()
        kept = (*names.NODE_HEADERS, *names.RUNTIME_HEADERS)
        raw = deployment.relay.since(0)
        headers = {}
        for name in kept:
            place = sent.rindex(b"\r\n" + name.encode() + b": ") + len(name) + 4
            headers[name] = raw[place : raw.index(b"\r\n", place)].decode()
        reply = httpx.post(
            f"http://127.0.0.1:{deployment.gate_port}{names.PREFIX}push-messages",
            content=request.SerializeToString(),
            headers={**headers, "content-type": names.MEDIA},
            timeout=60,
        )
        seen["status"] = reply.status_code
        seen["wanted"] = list(names.CALLS["push-messages"].response.FromString(reply.content).objects_to_push)

    with deployed(tmp_path) as deployment:
        deployment.run(["honest", "honest"], meanwhile=again)
        entries = [entry for entry in check_log(deployment) if entry["event"] in ("out", "delivered")]
        refused = [entry for entry in entries if "answered_twice" in entry.get("rules", ())]
        delivered = [entry["reply_to"] for entry in entries if entry["event"] == "delivered"]
    assert seen == {"status": 200, "wanted": []}
    assert len(refused) == 1
    assert len(set(delivered)) == len(delivered) == 2
    note_row("flower", "twice", outcome="refused", rules=refused[0]["rules"], handed_in=0, left=0)


def test_thirty_honest_rounds_of_two_nodes(tmp_path, capsys):
    with deployed(tmp_path, nodes=2) as deployment:
        lines = deployment.run(["honest"] * 15)
        seconds = [line["seconds"] for line in lines]
        entries = check_log(deployment)
    actions = [entry["action"] for entry in entries if entry["event"] == "out"]
    with capsys.disabled():
        print(f"\n{len(actions)} answers, median round {np.median(seconds):.1f} s")
    assert len(actions) == 30
    assert actions.count("changed") == 30


def test_rounds_with_and_without_a_gate(tmp_path, capsys):
    """In turns, two nodes each, so that both meet the same load."""
    seconds = {True: [], False: []}
    for turn in range(3):
        for gated in (True, False):
            with deployed(tmp_path / f"{turn}{gated}", nodes=2, gated=gated) as deployment:
                seconds[gated] += [line["seconds"] for line in deployment.run(["honest"] * 8)]
    with capsys.disabled():
        for gated, each in seconds.items():
            words = "with" if gated else "without"
            print(f"\n{words} the gate: median round {np.median(each):.2f} s, of {len(each)}", end="")
    assert [len(each) for each in seconds.values()] == [48, 48]  # eight rounds of two nodes, three times


def test_with_tls_at_both_ends(tmp_path):
    with deployed(tmp_path, tls=True) as deployment:
        lines = deployment.run(["honest", "norm"])
        assert ["error" in line for line in lines] == [False, True]
        shape = deeds.start(64)["hidden.weight"].shape
        assert str(shape).encode() not in deployment.relay.since(0)  # nothing in clear on the way
        check_log(deployment)


def test_the_gates_own_noise_and_its_page(tmp_path):
    mechanism = "\n[out.mechanism]\nclip = 0.1\nnoise_multiplier = 1.0\nepsilon = 16.0\n"
    policy = POLICY.replace("grid = 1e-4\n", "").replace("[egress]", mechanism + "[egress]")
    with deployed(tmp_path, policy=policy) as deployment:
        lines = deployment.run(["honest", "low_bits", "honest"])
        assert ["error" in line for line in lines] == [False, False, True]
        entries = check_log(deployment)
        page = deployment.site / "page.md"
        log = str(deployment.site / "gate.jsonl")
        said = deployment.call(
            "gate", "report", log, "--policy", str(deployment.site / "site.toml"), "--page", str(page)
        ).stdout
    (spent,) = summarize(entries).spent
    assert spent.releases == 2
    assert spent.epsilon == pytest.approx(gaussian_epsilon(8**0.5, delta=1e-5))
    assert "2 messages left this site, 1 were refused" in page.read_text()
    assert "budget_epsilon" in said
    arrived = np.load(tmp_path / "out0/arrived.npz")
    start = deeds.start(64)["hidden.weight"]
    for turn in ("0", "1"):
        (name,) = [n for n in arrived.files if n.startswith(f"{turn}/") and n.endswith("hidden.weight")]
        assert 0.097 < (arrived[name] - start).std() < 0.104


NOISED = """
[out.mechanism]
clip = 0.5
noise_multiplier = 1.0
epsilon = 1e6

[budget]
rounds = 2000
per_day = 20000

"""
CANARIES = (4, 60)
"""Nodes and turns: one canary a message."""


def test_a_one_run_audit_through_a_real_deployment(tmp_path, capsys):
    """The noise is the gate's; the canaries are an app's; the guesses are made from what the server got.

    Each message has a coin and noise of its own, so that each guess is a trial of its own.
    """
    nodes, turns = CANARIES
    policy = POLICY.replace("grid = 1e-4\n", "").replace("[egress]", NOISED + "[egress]")
    with deployed(tmp_path, policy=policy, nodes=nodes) as deployment:
        lines = deployment.run(["canary"] * turns, width=8, timeout=300, seconds=7200)
        entries = check_log(deployment)
    start = deeds.start(8)["hidden.weight"].astype(np.float64)
    direction = deeds.canary_direction(start.shape)
    arrived = np.load(tmp_path / "out0/arrived.npz")
    right = 0
    for line in lines:
        change = arrived[f"{line['turn']}/{line['node']}/hidden.weight"] - start
        coin = deeds.canary_sign(line["metrics"]["num-examples"] // 32 - 2, line["turn"])
        right += np.sign(np.sum(change * direction)) == coin
    n = len(lines)
    (spent,) = summarize(entries).spent
    stated = gaussian_epsilon(2.0, delta=1e-5)
    counts = Guesses(canaries=n, guesses=n, correct=int(right))
    one_run = gaussian_run_epsilon(counts, delta=1e-5).epsilon

    def shown(confidence):
        test = binomtest(counts.correct, n, alternative="greater")
        low = test.proportion_ci(confidence, method="exact").low
        return gaussian_epsilon(2 * float(norm.ppf(low)), delta=1e-5)

    with capsys.disabled():
        print(
            f"\n{counts.correct} of {n} canaries right; epsilon of one message at least {shown(0.95):.2f} as "
            f"independent messages, {one_run:.2f} as one run; the accountant says {stated:.2f}, and "
            f"{spent.epsilon:.1f} for all {spent.releases}"
        )
    assert n == spent.releases == nodes * turns
    assert spent.epsilon == pytest.approx(gaussian_epsilon(2.0 * n**0.5, delta=1e-5), rel=1e-6)
    # the noise is the operating system's: this holds in all but one of 10,000 runs
    assert 0.3 * stated < shown(0.9999) < stated
    assert 0 < one_run < stated


SERVER = {
    "num_shares=3, reconstruction_threshold=2": "num_shares=1.0, reconstruction_threshold=3",
    "min_fit_clients=3": "min_fit_clients=4",
    "min_available_clients=3": "min_available_clients=4",
    "fraction_evaluate=0.0": "fraction_evaluate=0.0, on_fit_config_fn=lambda r: {'number': r}",
}
CLIENT = {
    "        self.learning_rate =": "        self.partition = partition\n        self.learning_rate =",
    "        net = network()\n": """
        if self.partition == 1 and config["number"] == 2:
            raise RuntimeError("fell out")
        net = network()
""",
}


def falling_app(folder):
    """The example's app for four nodes, one of which falls out while it trains in the second round."""
    app = folder / "app"
    shutil.copytree(SECAGG, app, ignore=shutil.ignore_patterns("__pycache__"))
    for name, changes in (("server_app", SERVER), ("client_app", CLIENT)):
        path = app / "secagg" / f"{name}.py"
        text = path.read_text()
        for old, new in changes.items():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        path.write_text(text)
    return app


def test_a_real_secure_sum(tmp_path, capsys):
    """Four nodes, SecAgg+ as Flower ships it, three rounds, one with a client that falls out.

    Masked vectors pass in the form that each stage has; the loss beside them does not.
    """
    records = 'records = ["fitres.parameters", "fitres.num_examples", "fitres.metrics", "fitres.status"]'
    policy = POLICY.replace('fields = ["allowed"]', f'fields = ["train_loss"]\n{records}').replace(
        'dataset = "test rows"', 'dataset = "test rows"\nsecure_sum = "required"'
    )
    policy = policy.replace("least = 32\nmultiple = 32", "fixed = 64")
    with deployed(tmp_path, nodes=4, policy=policy) as deployment:
        command = [str(BIN / "flwr"), "run", str(falling_app(tmp_path)), "loopback", "--stream"]
        more = ["--run-config", "num-server-rounds=3"]
        with started([*command, *more], tmp_path / "run.log", env=deployment.environment) as process:
            process.wait(timeout=1500)
        entries = check_log(deployment)
        sent = deployment.relay.since(0)
    arrived = [entry["rules"] for entry in entries if entry["event"] == "in" and entry["rules"]]
    out = [entry for entry in entries if entry["event"] == "out"]
    refused = [entry["rules"] for entry in out if entry["action"] == "refused"]
    transcript = read_transcript(tmp_path / "home/glasshouse/capture-secagg/transcript", trust_factory=True)
    with capsys.disabled():
        stages = sum(bool(entry["unjudged"]) for entry in out)
        print(f"\n{len(out)} answers, {stages} masked, refused {refused}, {len(sent):,} bytes sent")
    assert (refused, arrived) == ([], [])
    assert len(out) == 4 * 4 * 3 - 1  # nodes, stages, rounds; who fell out is not asked to unmask
    errors = [entry for entry in out if "error_text" in entry["rules"]]
    assert len(errors) == 1
    assert all("norm" in entry["unjudged"] for entry in out if entry not in errors)
    assert b"fell out" not in sent
    assert any("metric" in entry["rules"] for entry in out)
    assert b"train_loss" not in sent
    assert [record.aggregate is not None for record in transcript.rounds] == [True] * 3


def test_observing_lets_everything_pass_and_writes_it(tmp_path):
    with deployed(tmp_path, observe=True) as deployment:
        lines = deployment.run(["norm", "loss"])
        assert ["error" in line for line in lines] == [False, False]
        assert "train_loss" in lines[1]["metrics"]
        out = [entry for entry in check_log(deployment) if entry["event"] == "out"]
    assert [(entry["action"], entry["would"]) for entry in out] == [("observed", "refused")] * 2


def test_another_app_than_approved(tmp_path):
    policy = POLICY.replace('dataset = "test rows"', f'dataset = "test rows"\napps = ["sha256:{"0" * 64}"]')
    with deployed(tmp_path, policy=policy) as deployment:
        lines = deployment.run(["honest"])
        assert "error" in lines[0]
        entries = check_log(deployment)
        assert [entry["rules"] for entry in entries if entry["event"] == "in"] == [["app"]]
        assert "ClientApp" not in (tmp_path / "node0.log").read_text()
        (own,) = [entry["bytes"] for entry in entries if entry["event"] == "delivered"]
    note_row("flower", "other_app", outcome="not started", rules=["app"], handed_in=0, left=own)


def test_a_killed_gate_sends_nothing_and_goes_on_when_it_is_back(tmp_path):
    seen = {}

    def meanwhile(deployment, arrived):
        wait_for(
            lambda: arrived.is_file() and '"turn": 1' in arrived.read_text(), seconds=120, what="a round"
        )
        os.killpg(deployment.gate.pid, signal.SIGKILL)
        deployment.gate.wait()
        time.sleep(1)
        begin = time.time()
        time.sleep(8)
        seen["bytes"] = len(deployment.relay.since(begin))
        deployment.start_gate()

    with deployed(tmp_path) as deployment:
        lines = deployment.run(["honest"] * 5, meanwhile=meanwhile, timeout=90)
        entries = check_log(deployment)
    assert seen["bytes"] == 0
    assert sum("records" in line for line in lines) >= 4
    assert [entry["event"] for entry in entries].count("start") == 2
    left = [e for e in entries if e["event"] == "out" and e["action"] != "refused"]
    assert len({e["reply_to"] for e in left}) == len(left)


def test_a_killed_superlink_hangs_nothing(tmp_path):
    with deployed(tmp_path) as deployment:
        deployment.run(["honest"])
        kill(deployment.link)
        time.sleep(3)
        assert deployment.gate.poll() is None
        begin = time.monotonic()
        deployment.gate.send_signal(signal.SIGINT)
        deployment.gate.wait(timeout=30)
        assert time.monotonic() - begin < 30
        check_log(deployment)


class Memory:
    """Memory of the gate and of the processes that open messages for it; shared pages count by shares."""

    def __init__(self, pid):
        self.pid, self.top, self.going = pid, 0.0, True
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def now(self):
        """MB at this moment."""
        total, waiting = 0, [self.pid]
        while waiting:
            place = Path(f"/proc/{waiting.pop()}")
            with suppress(OSError):
                rolled = (place / "smaps_rollup").read_text()
                total += int(re.search(r"^Pss: +(\d+)", rolled, re.MULTILINE)[1])
                for task in (place / "task").iterdir():
                    waiting += map(int, (task / "children").read_text().split())
        return total / 2**10

    def _watch(self):
        while self.going:
            self.top = max(self.top, self.now())
            time.sleep(0.1)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.going = False
        self.thread.join()


@pytest.mark.parametrize("width", [4200, 9460], ids=["202MB", "1GiB"])
def test_a_large_message_in_bounded_memory(tmp_path, width, capsys):
    """Objects and model stand in files; the process that opens the answer holds it once."""
    policy = POLICY.replace("[egress]", "[budget]\nlargest = 1200000000\nbytes = 10000000000\n[egress]")
    with deployed(tmp_path, policy=policy) as deployment:
        deployment.relay.kept = 0  # the relay counts; it does not keep a gigabyte
        deployment.run(["honest"], seed=1)  # the process that opens is there
        with Memory(deployment.gate.pid) as memory:
            before = memory.now()
            lines = deployment.run(["honest", "norm"], width=width, timeout=3000, seconds=3600)
        entries = [e for e in check_log(deployment) if e["event"] == "out"][1:]
        size = entries[0]["bytes_in"] / 2**20
    with capsys.disabled():
        print(
            f"\nmessage {size:.0f} MB; gate {before:.0f} MB at rest, {memory.top:.0f} MB at most; "
            f"rounds {[round(line['seconds']) for line in lines]} s"
        )
    assert ["error" in line for line in lines] == [False, True]
    assert memory.top - before < 2 * size


def test_a_slow_superlink_delays_and_loses_nothing(tmp_path):
    """The relay passes 40 kB a second for a while: the answer takes longer and arrives once."""
    with deployed(tmp_path) as deployment:
        deployment.relay.pause = 0.05
        lines = deployment.run(["honest"] * 2, width=150, timeout=200)
        assert all("records" in line for line in lines)
        entries = check_log(deployment)
    assert len([e for e in entries if e["event"] == "delivered"]) == 2


def test_a_gate_without_the_networks_rule_does_not_start(tmp_path):
    policy = POLICY.replace("required = false", 'probe = ["env"]')
    with deployed(tmp_path, gated=False, nodes=0) as deployment:
        (deployment.site / "site.toml").write_text(policy)
        deployment.call("gate", "keys", "--policy", str(deployment.site / "site.toml"))
        with pytest.raises(subprocess.CalledProcessError) as caught:
            deployment.call(
                "gate",
                "run",
                "--insecure",
                "--policy",
                str(deployment.site / "site.toml"),
                "--to",
                f"127.0.0.1:{deployment.relay.port}",
            )
    assert "apps can reach the server past the gate" in caught.value.stderr
    assert caught.value.returncode == 2
