"""One policy, two frameworks: Flower's gate and a FLARE site's filters decide alike."""

import numpy as np
import pytest

pytest.importorskip("nvflare")

from flare_world import STEPS, Site, same_bytes
from flwr.app import Error, Message
from gate_world import RUN, TABLE, deeds, merged, play, world

STRICT = {
    "out": {
        "norm": 2.5, "grid": 1e-4, "fields": ("allowed",), "records": ("arrays", "metrics", "config"),
        "examples": {"least": 32, "multiple": 32},
    },
}  # fmt: skip
MILD = {
    "out": {
        "norm": 2.5, "grid": 0.0, "fields": ("allowed", "train_loss"), "unlisted": "strip",
        "metrics": "round",
        "buffers": "fixed", "records": ("arrays", "metrics", "config"), "sparsest": 0.5,
        "examples": {"least": 2, "multiple": 1, "fixed": 64},
    },
}  # fmt: skip
NOISED = {"out": {**STRICT["out"], "noise": {"layer": "head.weight", "std": 1e-3}}}
HOSTILE = (
    "norm", "loss", "metric_list", "exception", "buffer", "extra_tensor", "shape", "tensor_name",
    "config_bytes", "one_example", "count", "count_digits", "many_faults", "float64", "nan", "denormal",
    "minus_zero", "low_bits", "pieces", "same_again", "order",
)  # fmt: skip
TOML = """
format = 1
site = "ward"
dataset = "rows"
[budget]
rounds = 1000
per_day = 100000
[out]
"""


def as_toml(out):
    """The policy's table as a file says it."""

    def word(value):
        if isinstance(value, dict):
            return "{ " + ", ".join(f"{k} = {word(v)}" for k, v in value.items()) + " }"
        return str(list(value)) if isinstance(value, tuple) else repr(value).replace("'", '"')

    return TOML + "".join(f"{name} = {word(value)}\n" for name, value in out.items())


def plan(honest):
    """Hostile and honest acts in turn, 42 in all."""
    for number, deed in enumerate(HOSTILE):
        yield deed, number, 2 * number
        yield honest, number, 2 * number + 1


def made_by(deed, received, seed, turn):
    """The app's act; the text of its exception."""
    try:
        return deeds.act(deed, received, seed=seed, turn=turn)
    except RuntimeError as error:
        return str(error)


def through_flower(folder, policy, acts):
    """What left of each act through Flower's gate, as (tensors, numbers) or None, and the decisions."""
    left = []
    limits = {"budget": {"rounds": 1000, "per_day": 100000}}
    with world(folder, {**policy, **limits}) as made:

        async def rounds():
            await made.node.call("activate-node", public_key=b"the node's public key")
            for deed, seed, turn in acts:
                made.link.ask(made.model, turn=turn)
                asked = await made.node.receive()
                received = {n: a.numpy() for n, a in asked.content["arrays"].items()}
                try:
                    reply = Message(deeds.reply(deed, received, seed=seed, turn=turn), reply_to=asked)
                except RuntimeError as error:
                    reply = Message(Error(code=2, reason=str(error)), reply_to=asked)
                assert await made.node.push(reply) == []
                answer = made.link.answer()
                if answer.has_error():
                    left.append(None)
                    continue
                arrays = {n: a.numpy() for n, a in answer.content["arrays"].items()}
                left.append((arrays, dict(answer.content["metrics"])))

        play(rounds())
        entries = made.entries("out")
    assert entries[0]["run"] == str(RUN)
    return left, entries


def through_flare(folder, policy, acts):
    """The same through a FLARE site's two filters."""
    site, left = Site(folder, as_toml(merged(TABLE, policy)["out"])), []
    received = deeds.start(64)
    for deed, seed, turn in acts:
        made = made_by(deed, received, seed, turn)
        if isinstance(made, str):
            site.fail(received, turn=turn)
            left.append(None)
            continue
        sent = site.send(received, made, turn=turn)
        numbers = {"num-examples" if n == STEPS else n: v for n, v in (sent.meta if sent else {}).items()}
        left.append(None if sent is None else (sent.data, numbers))
    entries = site.entries()
    site.close()
    return left, entries


@pytest.mark.parametrize("policy", [STRICT, MILD, NOISED], ids=["strict", "mild", "noised"])
def test_the_same_update_is_decided_alike_in_both_frameworks(tmp_path, policy):
    """42 messages a policy, 126 in all: action, rules, and every byte of what leaves."""
    acts = list(plan("noised" if policy is NOISED else "honest"))
    both = []
    for name, through in (("flower", through_flower), ("flare", through_flare)):
        (tmp_path / name).mkdir()
        both.append(through(tmp_path / name, policy, acts))
    (flower, first), (flare, second) = both
    assert len(first) == len(second) == len(acts)
    for number, (deed, _, _) in enumerate(acts):
        decided = [(e["action"], frozenset(e["rules"])) for e in (first[number], second[number])]
        assert decided[0] == decided[1], deed
        one, other = flower[number], flare[number]
        assert (one is None) == (other is None), deed
        if one is not None:
            assert same_bytes(one[0], other[0]), deed
            assert one[1] == other[1], deed
    actions = [entry["action"] for entry in first]
    assert "refused" not in actions[1::2]
    assert actions.count("refused") >= 7


@pytest.mark.parametrize("kind", ["plain", "clipped", "noised"])
@pytest.mark.parametrize("width", [8, 64, 200])
def test_of_hundreds_of_honest_flare_answers_none_is_refused(tmp_path, kind, width):
    """34 rounds of three networks by three kinds: 306 messages."""
    out = {**STRICT["out"], **(NOISED["out"] if kind == "noised" else {})}
    site, received = Site(tmp_path, as_toml(out)), deeds.start(width)
    for turn in range(34):
        update = deeds.quiet(received, kind, turn)
        made = deeds.Act(arrays=update, metrics={"num-examples": 64}, documents={}, order=list(update))
        sent = site.send(received, made, turn=turn)
        for name, array in sent.data.items():
            np.testing.assert_allclose(array, update[name], atol=5.1e-5)
    site.close()
    actions = [entry["action"] for entry in site.entries()]
    assert len(actions) == 34
    assert "refused" not in actions
