"""The gate's proxy in memory: hostile apps, honest ones, and attacks on the gate itself."""

import random
import time

import gate_world
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message import array as flower_array
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays, typing
from flwr.compat.common.recorddict_compat import fitres_to_recorddict, recorddict_to_fitres
from gate_world import NODE, RUN, deeds, play, world

from glasshouse.gate.apart.limits import Limits
from glasshouse.gate.apart.spool import Spool
from glasshouse.gate.judge import REPLACED
from glasshouse.integrations.flower_gate import names, proxy
from glasshouse.integrations.flower_gate.decoding import decode
from glasshouse.integrations.flower_gate.encoding import Parts, chunk_ids, encode
from glasshouse.integrations.flower_gate.objects import Malformed, join, object_id, split
from glasshouse.integrations.flower_gate.opening import opener

REFUSED = {
    "norm": "norm",
    "loss": "unlisted",
    "metric_list": "unlisted",
    "exception": "error_text",
    "buffer": "buffer",
    "extra_tensor": "extra_tensor",
    "shape": "shape",
    "record_name": "record",
    "tensor_name": "extra_tensor",
    "config_bytes": "unlisted",
    "one_example": "examples",
    "count_digits": "examples",
    "many_faults": "unlisted",
    "float64": "dtype",
    "nan": "not_finite",
    "stype": "malformed",
}
EMPTIED = ("count", "denormal", "minus_zero", "low_bits", "pieces", "order")
"""What the gate sends of these says nothing of the row: two rows give the same bytes."""
OWN = 900
"""Most bytes of a refusal, headers of HTTP apart; it measures 650."""


def forms(row):
    """How a row may stand among bytes."""
    floats = deeds.as_floats(row, 64)
    yield from (row, row.hex().encode(), floats.tobytes(), floats.astype(np.float64).tobytes())
    yield from (row[:16], row.hex()[:24].encode())


async def one_deed(made, deed, *, seed=0, turn=0):
    made.link.ask(made.model, turn=turn)
    await made.node.call("activate-node", public_key=b"the node's public key", heartbeat_interval=17.25)
    made.link.bodies.clear()
    return await made.node.do(deed, seed=seed, turn=turn)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("deed", REFUSED)
def test_a_hostile_answer_is_refused_and_none_of_it_is_sent(tmp_path, deed, seed):
    with world(tmp_path) as made:
        faults = play(one_deed(made, deed, seed=seed))
        assert faults == []
        answer = made.link.answer()
        assert answer.has_error()
        assert answer.error.reason == REPLACED
        sent = made.link.sent()
        assert not any(form in sent for form in forms(deeds.private_row(seed)))
        pushed = sum(len(body) for name, body in made.link.bodies if name.startswith("push"))
        assert pushed < OWN
        (entry,) = made.entries("out")
        assert REFUSED[deed] in entry["rules"]
        assert made.entries("delivered")[0]["bytes"] == pushed


@pytest.mark.parametrize("deed", EMPTIED)
def test_what_the_gate_sends_of_other_carriers_does_not_depend_on_the_row(tmp_path, deed, monkeypatch):
    sent = []
    for seed in (1, 2):
        # one update, two rows to be hidden in it
        row = np.random.default_rng(1000 + seed).bytes(64)
        monkeypatch.setattr(deeds, "private_row", lambda _, row=row: row)
        (tmp_path / str(seed)).mkdir()
        with world(tmp_path / str(seed)) as made:
            play(one_deed(made, deed, seed=0))
            content = made.link.answer().content
            arrays = {name: array.numpy().tobytes() for name, array in content["arrays"].items()}
            sent.append((list(arrays), arrays, dict(content["metrics"])))
    assert sent[0] == sent[1]
    assert sent[0][2] == {"num-examples": 64}
    assert sent[0][0] == list(deeds.start(64))  # in the order in which they were received


def test_an_honest_answer_arrives_as_it_was_up_to_the_grid(tmp_path):
    with world(tmp_path) as made:
        play(one_deed(made, "honest", seed=3))
        content = made.link.answer().content
        expected = deeds.honest(made.model, 3, 0)
        for name, array in content["arrays"].items():
            np.testing.assert_allclose(array.numpy(), expected[name], atol=5.1e-5)
        assert dict(content["metrics"]) == {"num-examples": 64}


@pytest.mark.parametrize("kind", ["plain", "clipped", "noised"])
@pytest.mark.parametrize("width", [8, 64, 200])
def test_of_hundreds_of_honest_answers_none_is_refused(tmp_path, kind, width):
    """34 rounds of three networks by three kinds: 306 messages."""
    limits = {"budget": {"rounds": 34}, "out": {"noise": {"layer": "head.weight", "std": 1e-3}}}
    with world(tmp_path, limits if kind == "noised" else {"budget": {"rounds": 34}}) as made:
        made.model = deeds.start(width)

        async def rounds():
            await made.node.call("activate-node", public_key=b"the node's public key")
            for turn in range(34):
                made.link.ask(made.model, turn=turn)
                asked = await made.node.receive()
                received = {n: a.numpy() for n, a in asked.content["arrays"].items()}
                await made.node.push(Message(honest_content(received, kind, turn), reply_to=asked))

        play(rounds())
        actions = [entry["action"] for entry in made.entries("out")]
        assert len(actions) == 34
        assert "refused" not in actions
        assert len(made.link.replies) == 34


def honest_content(received, kind, turn):
    arrays = deeds.quiet(received, kind, turn)
    return RecordDict(
        {
            "arrays": gate_world.ArrayRecord({n: gate_world.Array(a) for n, a in arrays.items()}),
            "metrics": MetricRecord({"num-examples": 64}),
        }
    )


def test_required_noise_is_asked_for(tmp_path):
    with world(tmp_path, {"out": {"noise": {"layer": "head.weight", "std": 1e-3}}}) as made:
        play(one_deed(made, "honest"))
        assert made.entries("out")[0]["rules"] == ["noise"]


def test_the_gates_noise_is_added_and_accounted_for(tmp_path):
    mechanism = {"clip": 0.1, "noise_multiplier": 1.0, "epsilon": 16.0}
    with world(tmp_path, {"out": {"mechanism": mechanism, "grid": 0.0}}) as made:
        for turn in range(3):
            play(one_deed(made, "honest", turn=turn))
        entries = made.entries("out")
        assert [e["action"] for e in entries] == ["changed", "changed", "refused"]
        assert entries[2]["rules"] == ["budget_epsilon"]
        _, tree, contents = made.link.replies[1]
        sent = decode(tree.object_id, dict(contents)).arrays["hidden.weight"]
        change = sent - made.model["hidden.weight"]
        assert 0.097 < change.std() < 0.103


def test_observing_sends_the_original_and_writes_what_it_would_have_done(tmp_path):
    with world(tmp_path, observe=True) as made:
        play(one_deed(made, "norm"))
        sent = made.link.answer().content["arrays"]["hidden.weight"].numpy()
        np.testing.assert_array_equal(sent, deeds.honest(made.model, 0, 0)["hidden.weight"] + 1)
        (entry,) = made.entries("out")
        assert (entry["action"], entry["would"], entry["rules"]) == ("observed", "refused", ["norm"])


def test_another_app_than_approved_never_sees_the_question(tmp_path):
    with world(tmp_path, {"apps": [f"sha256:{'0' * 64}"]}) as made:
        assert play(one_deed(made, "honest")) is None
        assert made.link.answer().has_error()
        assert made.entries("in")[0]["rules"] == ["app"]


def test_the_approved_app_runs(tmp_path):
    with world(tmp_path, {"apps": [f"sha256:{object_id(gate_world.APP)}"]}) as made:
        play(one_deed(made, "honest"))
        assert not made.link.answer().has_error()


def test_a_model_with_nan_never_reaches_the_app(tmp_path):
    with world(tmp_path) as made:
        made.model["hidden.bias"][0] = np.nan
        assert play(one_deed(made, "honest")) is None
        assert made.link.answer().has_error()
        assert made.entries("in")[0]["rules"] == ["not_finite"]


@pytest.mark.parametrize("form", ["the_same", "another"])
def test_a_second_answer_is_not_sent(tmp_path, form):
    with world(tmp_path) as made:

        async def twice():
            made.link.ask(made.model)
            await made.node.call("activate-node", public_key=b"the node's public key")
            asked = await made.node.receive()
            received = {n: a.numpy() for n, a in asked.content["arrays"].items()}
            for turn in range(2):
                content = deeds.reply("honest", received, seed=0, turn=turn if form == "another" else 0)
                await made.node.push(Message(content, reply_to=asked))

        play(twice())
        assert len(made.link.replies) == 1
        assert "answered_twice" in made.entries("out")[1]["rules"]


def test_nothing_of_metadata_is_the_apps(tmp_path):
    row = deeds.private_row(0).hex()

    def alter(request):
        metadata = request.messages_list[0].metadata
        metadata.group_id = metadata.message_type = row
        metadata.ttl = 1234.5678
        request.clientapp_runtime_list[0] = 0.123456789

    with world(tmp_path) as made:

        async def push():
            made.link.ask(made.model, turn=5)
            await made.node.call("activate-node", public_key=b"the node's public key", heartbeat_interval=0.1)
            asked = await made.node.receive()
            content = RecordDict({"metrics": MetricRecord({"num-examples": 64})})
            await made.node.push(Message(content, reply_to=asked), alter=alter)

        play(push())
        assert row.encode() not in made.link.sent()
        metadata = made.link.replies[0][0].metadata
        assert (metadata.group_id, metadata.message_type) == ("5", "train")
        sent = dict(made.link.bodies)["push-messages"]
        runtime = names.CALLS["push-messages"].request.FromString(sent).clientapp_runtime_list
        assert list(runtime) == [0.0]
        beat = names.CALLS["activate-node"].request.FromString(dict(made.link.bodies)["activate-node"])
        assert beat.heartbeat_interval == names.HEARTBEAT


SETUP = {
    "stage": "setup",
    "sample_num": 4,
    "share_num": 4,
    "threshold": 3,
    "mod_range": 2**32,
    "clipping_range": 8.0,
    "target_range": 2**22,
    "max_weight": 100.0,
}
KEYS = {
    name: ec.generate_private_key(ec.SECP384R1())
    .public_key()
    .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for name in ("pk1", "pk2")
}


def test_secure_sums_leave_only_where_the_policy_says_so(tmp_path):
    for allowed in ("refused", "allowed"):
        (tmp_path / allowed).mkdir()
        with world(tmp_path / allowed, {"secure_sum": allowed}) as made:

            async def push(made=made):
                made.link.ask(made.model, secure=SETUP)
                await made.node.call("activate-node", public_key=b"the node's public key")
                asked = await made.node.receive()
                masked = ConfigRecord(KEYS)
                content = RecordDict(
                    {names.SECURE_RECORD: masked, "metrics": MetricRecord({"num-examples": 64})}
                )
                await made.node.push(Message(content, reply_to=asked))

            play(push())
            assert made.link.answer().has_error() == (allowed == "refused")
            if allowed == "allowed":
                assert dict(made.link.answer().content[names.SECURE_RECORD]) == KEYS
                assert "norm" in made.entries("out")[0]["unjudged"]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"threshold": 2}, "secure_terms"),
        ({"share_num": 2, "sample_num": 2}, "secure_terms"),
        ({"stage": "unmask"}, "secure_terms"),
        ({"stage": "sum"}, "secure_terms"),
        ({"sample_num": "four"}, "secure_terms"),
    ],
)
def test_terms_that_could_show_one_update_never_reach_the_app(tmp_path, change, rule):
    with world(tmp_path, {"secure_sum": "required"}) as made:

        async def ask():
            made.link.ask(made.model, secure={**SETUP, **change})
            await made.node.call("activate-node", public_key=b"the node's public key")
            return await made.node.receive()

        assert play(ask()) is None
        assert made.link.answer().has_error()
        (entry,) = made.entries("in")
        assert (entry["action"], entry["rules"]) == ("refused", [rule])


@pytest.mark.parametrize(
    "answer",
    [
        {"pk1": b"a row of data", "pk2": KEYS["pk2"]},
        {**KEYS, "pk2": KEYS["pk2"] + b" row"},
        {**KEYS, "row": b"a row"},
        {"masked_params": [b"a row"]},
    ],
)
def test_an_answer_of_another_form_than_its_stage_does_not_leave(tmp_path, answer):
    with world(tmp_path, {"secure_sum": "required"}) as made:

        async def push():
            made.link.ask(made.model, secure=SETUP)
            await made.node.call("activate-node", public_key=b"the node's public key")
            asked = await made.node.receive()
            await made.node.push(
                Message(RecordDict({names.SECURE_RECORD: ConfigRecord(answer)}), reply_to=asked)
            )

        play(push())
        assert made.link.answer().has_error()
        assert b"a row" not in made.link.sent()
        assert made.entries("out")[0]["rules"] == ["secure_form"]


@pytest.mark.parametrize("form", ["bare", "tensors_beside"])
def test_where_a_mask_is_required_nothing_bare_leaves(tmp_path, form):
    with world(tmp_path, {"secure_sum": "required"}) as made:

        async def push():
            made.link.ask(made.model)
            await made.node.call("activate-node", public_key=b"the node's public key")
            asked = await made.node.receive()
            received = {n: a.numpy() for n, a in asked.content["arrays"].items()}
            content = deeds.reply("honest", received, seed=0, turn=0)
            if form == "tensors_beside":
                content[names.SECURE_RECORD] = ConfigRecord({"masked_params": [b"masked"]})
            await made.node.push(Message(content, reply_to=asked))

        play(push())
        assert made.link.answer().has_error()
        assert "secure_sum" in made.entries("out")[0]["rules"]


LEGACY = ["fitres.parameters", "fitres.num_examples", "fitres.metrics", "fitres.status"]


@pytest.mark.parametrize(
    ("metrics", "rule"), [({"accuracy": 0.8765}, "metric_rounded"), ({"row": "text"}, "unlisted")]
)
def test_a_numpy_client_sends_its_update_and_none_of_its_texts(tmp_path, metrics, rule):
    out = {"records": LEGACY, "fields": ("accuracy",), "metrics": "round"}
    with world(tmp_path, {"out": out}) as made:
        arrays = {str(n): array for n, array in enumerate(made.model.values())}
        made.model = arrays

        async def push():
            made.link.ask(arrays)
            await made.node.call("activate-node", public_key=b"the node's public key")
            asked = await made.node.receive()
            answer = typing.FitRes(
                status=typing.Status(code=typing.Code.OK, message="a row of data"),
                parameters=ndarrays_to_parameters(
                    [a + 1e-3 if a.dtype.kind == "f" else a for a in arrays.values()]
                ),
                num_examples=70,
                metrics=metrics,
            )
            await made.node.push(Message(fitres_to_recorddict(answer, keep_input=True), reply_to=asked))

        play(push())
        assert b"a row of data" not in made.link.sent()
        assert rule in made.entries("out")[0]["rules"]
        if rule == "unlisted":
            assert made.link.answer().has_error()
            return
        arrived = recorddict_to_fitres(made.link.answer().content, keep_input=True)
        assert (arrived.num_examples, arrived.status.message, arrived.status.code) == (64, "", typing.Code.OK)
        assert {k: round(v, 9) for k, v in arrived.metrics.items()} == {"accuracy": 0.9}
        for sent, base in zip(parameters_to_ndarrays(arrived.parameters), arrays.values(), strict=True):
            np.testing.assert_allclose(sent, base + 1e-3 if base.dtype.kind == "f" else base, atol=1e-6)


# Attacks on the gate itself.


async def ready(made):
    made.link.ask(made.model)
    await made.node.call("activate-node", public_key=b"the node's public key")
    asked = await made.node.receive()
    received = {n: a.numpy() for n, a in asked.content["arrays"].items()}
    return Message(deeds.reply("honest", received, seed=0, turn=0), reply_to=asked)


def tree_of(depth):
    tree = names.ProtoTree(object_id="0" * 64)
    for _ in range(depth):
        tree = names.ProtoTree(object_id="0" * 64, children=[tree])
    return tree


def deep(request):
    request.message_object_trees[0].CopyFrom(tree_of(60))


def many(request):
    children = [names.ProtoTree(object_id=f"{n:064x}") for n in range(proxy.OBJECTS + 1)]
    request.message_object_trees[0].children.extend(children)


def no_id(request):
    request.message_object_trees[0].children[0].object_id = "../../etc/passwd"


def other_id(request):
    request.messages_list[0].metadata.message_id = "1" * 64


@pytest.mark.parametrize("alter", [deep, many, no_id, other_id])
def test_an_odd_announcement_is_refused_at_once(tmp_path, alter):
    with world(tmp_path) as made:

        async def push():
            return await made.node.push(await ready(made), alter=alter)

        play(push())
        assert made.link.answer().has_error()
        assert made.entries("out")[0]["rules"] == ["malformed"]


def wrong_hash(reply):
    return {reply.object_id: b"Message  0\x00"}


def lying_length(reply):
    content = reply.deflate()
    return {reply.object_id: content.replace(b" ", b" 9", 2)}


@pytest.mark.parametrize("contents", [wrong_hash, lying_length])
def test_an_object_that_is_not_its_id_is_refused(tmp_path, contents):
    with world(tmp_path) as made:

        async def push():
            reply = await ready(made)
            return await made.node.push(reply, contents=contents(reply))

        play(push())
        assert made.link.answer().has_error()
        assert made.entries("out")[0]["details"] == ["an object is not what its id says"]


def test_more_bytes_than_the_policy_allows_are_not_kept(tmp_path):
    with world(tmp_path, {"budget": {"largest": 60_000}}) as made:

        async def push():
            reply = await ready(made)
            reply.content["metrics"] = MetricRecord({f"m{n}": 1.0 for n in range(5_000)})
            return await made.node.push(reply)

        play(push())
        assert made.link.answer().has_error()
        assert set(made.entries("out")[0]["rules"]) == {"too_large"}


def test_what_was_announced_and_never_came_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(proxy, "WHOLE_WITHIN", 0.0)
    with world(tmp_path) as made:

        async def push():
            reply = await ready(made)
            bare = names.CALLS["push-messages"].request()
            bare.node.node_id = NODE
            bare.messages_list.add().metadata.reply_to_message_id = reply.metadata.reply_to_message_id
            bare.messages_list[0].metadata.message_id = "1" * 64
            bare.message_object_trees.add(object_id="1" * 64)
            answer = await made.node.send("push-messages", bare)
            assert list(answer.objects_to_push) == ["1" * 64]
            await made.node.call("send-node-heartbeat")

        play(push())
        assert made.link.answer().has_error()
        assert made.entries("out")[0]["rules"] == ["incomplete"]


@pytest.mark.parametrize(
    ("path", "status"),
    [("/v1/fleet/push-secrets", 404), ("/v1/control/start-run", 404), ("/", 404), ("/v1/fleet/../x", 404)],
)
def test_unknown_paths_are_refused_and_written(tmp_path, path, status):
    with world(tmp_path) as made:
        assert play(made.node.raw(path, b"row")).status_code == status
        assert made.link.bodies == []
        assert len(made.entries("unknown")) == 1


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"\xa2\x06\x03row", {}, 400),  # field 100
        (b"\xff" * 50, {}, 400),
        (b"", {"content-encoding": "gzip"}, 415),
        (b"", {"content-type": "text/plain"}, 415),
        (b"", {names.VERSION_HEADER: "1.38.0"}, 400),
        (b"", {names.VERSION_HEADER: ""}, 400),
        (b"", {names.SIGNATURE_HEADER: "a row of data"}, 401),
        (b"x" * (5 * 2**20), {}, 413),
    ],
)
def test_odd_requests_are_refused_and_nothing_goes_on(tmp_path, body, headers, status):
    with world(tmp_path) as made:
        reply = play(made.node.raw("/v1/fleet/pull-messages", body, **headers))
        assert (reply.status_code, reply.content) == (status, b"")
        assert made.link.bodies == []


def test_names_in_requests_carry_nothing(tmp_path):
    with world(tmp_path) as made:

        async def tries():
            await ready(made)
            made.link.bodies.clear()
            return [
                await made.node.call("pull-messages", message_ids=["row"]),
                await made.node.call("pull-object", run_id=RUN, object_id="0" * 64),
                await made.node.call("get-fab", run_id=RUN, hash_str="0" * 64),
                await made.node.call("get-run", run_id=12345),
                await made.node.call("confirm-message-received", run_id=RUN, message_object_id="0" * 64),
                await made.node.call("register-node", public_key=b"row"),
            ]

        assert play(tries()) == [400, 400, 400, 400, 400, 401]
        assert made.link.bodies == []


def test_a_key_has_one_node(tmp_path):
    with world(tmp_path) as made:

        async def tries():
            await ready(made)
            request = names.CALLS["send-node-heartbeat"].request()
            request.node.node_id = 99
            return await made.node.send("send-node-heartbeat", request)

        assert play(tries()) == 401


def test_two_nodes_do_not_mix_their_answers(tmp_path):
    with world(tmp_path) as made:

        async def tries():
            reply = await ready(made)
            stranger = gate_world.Node(made.node.client)
            stranger.headers[names.KEY_HEADER] = "b3RoZXI="
            return await stranger.push(reply)

        assert play(tries()) == [400]
        assert made.link.replies == []


def test_nodes_that_are_done_take_no_place(tmp_path):
    with world(tmp_path) as made:

        async def tries():
            for number in range(proxy.PENDING + 2):
                key = gate_world.base64.b64encode(f"key {number}".encode()).decode()
                made.node.headers[names.KEY_HEADER] = key
                made.link.ask(made.model, turn=number)
                await made.node.call("activate-node", public_key=f"key {number}".encode())
                await made.node.do("honest", seed=number, turn=number)

        play(tries())
        assert len(made.link.replies) == proxy.PENDING + 2


def test_a_superlink_that_fails_for_a_while_gets_the_decided_message_once(tmp_path):
    with world(tmp_path) as made:

        async def push():
            reply = await ready(made)
            made.link.failing = 2
            objects = {i: o.deflate() for i, o in gate_world.get_all_nested_objects(reply).items()}
            request = names.CALLS["push-messages"].request(
                messages_list=[
                    gate_world.message_to_proto(Message(metadata=reply.metadata, content=RecordDict()))
                ],
                message_object_trees=[gate_world.get_object_tree(reply)],
            )
            request.node.node_id = NODE
            request.messages_list[0].metadata.message_id = reply.object_id
            answer = await made.node.send("push-messages", request)
            statuses = []
            for identity in [*answer.objects_to_push, *[answer.objects_to_push[-1]] * 3]:
                got = await made.node.call(
                    "push-object",
                    run_id=RUN,
                    object_id=identity,
                    object_content=objects[identity],
                    session_id=answer.session_id,
                )
                statuses.append(got if isinstance(got, int) else 200)
            return statuses

        statuses = play(push())
        assert statuses.count(503) == 2
        assert statuses[-1] == 200
        assert not made.link.answer().has_error()
        assert len(made.entries("out")) == 1
        assert len(made.link.replies) == 1


def test_with_a_full_disk_nothing_leaves(tmp_path, monkeypatch):
    with world(tmp_path) as made:

        def full(*_):
            raise OSError(28, "No space left on device")

        async def push():
            reply = await ready(made)
            made.link.bodies.clear()
            with monkeypatch.context() as patched:
                patched.setattr("glasshouse.gate.log.os.fsync", full)
                return await made.node.push(reply)

        assert set(play(push())) == {503}
        assert not any(name.startswith("push") for name, _ in made.link.bodies)


def hostile_bytes(seed):
    """A well-formed request body with bytes changed, cut, doubled or replaced."""
    rng = random.Random(seed)
    head = rng.choice(
        [b"Message", b"RecordDict", b"ArrayRecord", b"Array", b"ArrayChunk", b"MetricRecord", b"X"]
    )
    body = rng.choice(
        [
            b"{" * 50_000,
            b'{"a": ' * 2000,
            rng.randbytes(rng.randrange(300)),
            b'{"dtype": "float32", "shape": [99999999999], "stype": "numpy.ndarray", "arraychunk_ids": [0]}',
            b'{"a": 1e999}',
            b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 70_000,
        ]
    )
    children = ",".join(f"{rng.getrandbits(256):064x}" for _ in range(rng.randrange(3))).encode()
    length = rng.choice([str(len(body)).encode(), b"-1", b"9" * 30, b"1e3", b""])
    return b" ".join([head, children, length]) + b"\x00" + body


def test_three_hundred_hostile_objects_are_refused_within_seconds():
    begin = time.monotonic()
    for seed in range(300):
        content = hostile_bytes(seed)
        with pytest.raises(Malformed):
            decode(object_id(content), {object_id(content): content})
    assert time.monotonic() - begin < 20


def test_three_hundred_altered_messages_never_break_the_decoder():
    """Honest objects with bytes changed, their ids made right again: decoded or refused, never an error."""
    parts = Parts(arrays=deeds.start(8), fields={"metrics": {"n": 3}}, order=("arrays", "metrics"))
    parts = Parts(**{**parts.__dict__, "array_record": "arrays"})
    encoded = encode(names.ProtoMessage().metadata, parts)
    refused = 0
    for seed in range(300):
        rng = random.Random(seed)
        contents = {i: encoded.content(i) for i in (*encoded.small, *encoded.chunks)}
        target = rng.choice(sorted(contents))
        data = bytearray(contents[target])
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        contents[target] = bytes(data)
        try:
            decode(encoded.root, contents)
        except Malformed:
            refused += 1
    assert 50 < refused < 300


def test_objects_are_split_as_they_are_joined():
    content = join("ArrayRecord", ("0" * 64,), b"abc")
    head, body = split(content)
    assert (head.kind, head.children, bytes(body)) == ("ArrayRecord", ("0" * 64,), b"abc")


PLAIN = {"out": {"grid": 0.0}}


def test_what_does_not_change_is_sent_as_it_came_and_hashed_once(tmp_path):
    """Chunks that the judge left alone keep their ids; a changed number, or other cuts, make new ones."""
    arrays = {"w": np.arange(1.0, 3_000_001, dtype=np.float32), "v": np.ones(8, np.float32)}
    metadata = type(names.ProtoMessage().metadata)(message_type="train")
    encoded = encode(metadata, Parts(arrays=arrays, order=("a",), array_record="a"))
    contents = Spool.inside(tmp_path)
    for identity in (*encoded.small, *encoded.chunks):
        contents[identity] = encoded.content(identity)
    decoded = decode(encoded.root, contents)
    assert {name: len(ids) for name, ids in decoded.chunks.items()} == {"w": 3, "v": 1}
    assert decoded.chunks["w"] == chunk_ids(arrays["w"])
    parts = Parts(
        arrays=decoded.arrays, order=("a",), array_record="a", chunks=decoded.chunks, objects=contents
    )
    assert encode(metadata, parts).kept == encoded.chunks.keys()
    decoded.arrays["w"][2_000_000] += 1  # in the second chunk
    again = encode(metadata, parts)
    assert again.kept == encoded.chunks.keys() - {decoded.chunks["w"][1]}
    bare = Parts(arrays=decoded.arrays, order=("a",), array_record="a")
    assert encode(metadata, bare).tree == again.tree
    assert [again.content(i) for i in sorted(again.chunks)] == [
        encode(metadata, bare).content(i) for i in sorted(again.chunks)
    ]


@pytest.mark.parametrize("policy", [None, PLAIN], ids=["rounded", "as it came"])
def test_an_answer_cut_in_other_pieces_is_the_same_answer(tmp_path, policy):
    """The log's digest is of the tensors: other pieces, lengths or orders in memory do not make them new."""
    with world(tmp_path, policy) as made:

        async def twice():
            return [await reply_in_pieces(made, size, turn) for turn, size in enumerate((None, 100))]

        first, second = play(twice())
        assert (first, second) == ([], [])
        entries = made.entries("out")
        assert [entry["rules"] for entry in entries][1] == ["sent_before"]
        assert entries[0]["got"] == entries[1]["got"]


async def reply_in_pieces(made, size, turn):
    """An honest answer of turn 0, its arrays cut in pieces of ``size`` bytes."""
    made.link.ask(made.model, turn=turn)
    asked = await made.node.receive()
    received = {name: array.numpy() for name, array in asked.content["arrays"].items()}
    content = deeds.reply("honest", received, seed=0, turn=0)
    if size is None:
        return await made.node.push(Message(content, reply_to=asked))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flower_array, "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", size)
        return await made.node.push(Message(content, reply_to=asked))


def test_the_process_that_opens_messages_holds_little(tmp_path):
    """Each fork costs what it holds: no torch, and none of Flower's own program."""
    with world(tmp_path) as made:
        play(one_deed(made, "honest", seed=0))
    held = opener().call(eval, Limits.of(2**20), ("[*__import__('sys').modules]",), ())
    assert {"numpy", "glasshouse.gate.judge", "flwr.proto.message_pb2"} <= set(held)
    assert not {"torch", "scipy.stats", "dp_accounting", "flwr.app", "grpc", "httpx", "pandas"} & set(held)


def test_large_arrays_are_cut_as_flower_cuts_them(tmp_path):
    """Two chunks and a rest; Flower reads them back."""
    arrays = {"w": np.arange(3_000_000, dtype=np.float32), "empty": np.zeros((0, 3), np.float32)}
    metadata = type(names.ProtoMessage().metadata)(message_type="train")
    encoded = encode(metadata, Parts(arrays=arrays, order=("a",), array_record="a"))
    contents = {i: encoded.content(i) for i in (*encoded.small, *encoded.chunks)}
    assert len(encoded.chunks) == 4
    inflated = gate_world.inflate_object_from_contents(encoded.root, dict(contents))
    for name, array in arrays.items():
        np.testing.assert_array_equal(inflated.content["a"][name].numpy(), array)
    kept = dict(contents)
    decoded = decode(encoded.root, kept, release=True)
    np.testing.assert_array_equal(decoded.arrays["w"], arrays["w"])
    assert not encoded.chunks.keys() & kept.keys()
    assert encoded.size == pytest.approx(12_000_000, rel=0.01)
