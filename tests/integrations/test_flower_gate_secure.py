"""SecAgg+ as the gate reads it: Flower's own rounds, with clients that drop out, and false answers."""

from copy import deepcopy

import flower_apps as apps
import numpy as np
import pytest
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.serde import config_record_from_proto, config_record_to_proto
from test_flower_secure_terms import TINY, run, still_client

from glasshouse.integrations.flower_gate.encoding import npy_header
from glasshouse.integrations.flower_gate.secure import BadShare, read_terms, rebuilt_share

NODES = (7_001, 7_002, 7_003, 2**63 + 5)
TERMS = {"num_shares": 1.0, "reconstruction_threshold": 3, "max_weight": 100.0}


class Gate:
    """Reads every instruction and answer of a run as the gate does, and sends on what the gate would send."""

    def __init__(self, client, falls=lambda number, stage, node: False):
        self.client, self.falls = client, falls
        self.memory, self.broken, self.seen, self.at = {}, [], [], {}

    def __call__(self, message, context):
        configs = message.content.config_records.get(RECORD_KEY_CONFIGS)
        if configs is None:
            return self.client(message, context)
        node, number, stage = message.metadata.dst_node_id, message.metadata.group_id, configs[Key.STAGE]
        memory = self.memory.setdefault(node, {})
        told = read_terms(config_record_to_proto(configs), memory, own=node, group=number)
        self.broken += [told] if told else []
        received = {
            f"{name}/{key}": array.numpy()
            for name, record in message.content.array_records.items()
            for key, array in record.items()
        }
        if self.falls(int(number), stage, node):
            raise ConnectionError("fell out")
        reply = self.client(message, context)
        answer = config_record_to_proto(reply.content.config_records[RECORD_KEY_CONFIGS])
        self.seen.append((stage, node, deepcopy(memory), answer, received))
        built = rebuilt_share(answer, memory, own=node, received=received)
        assert (
            built.SerializeToString()
            == rebuilt_share(built, deepcopy(memory), own=node, received=received).SerializeToString()
        )
        reply.content[RECORD_KEY_CONFIGS] = config_record_from_proto(built)
        return reply


def rounds(gate, folder, number=3):
    strategy = apps.LegacyFedAvg(
        initial_parameters=apps.first_parameters(TINY), min_fit_clients=4, fraction_evaluate=0.0
    )
    server = apps.workflow_server(number, secure=True, strategy=strategy, **TERMS)
    return run(server, gate, folder, model=TINY, nodes=NODES)


def falls(number, stage, node):
    """One client falls out while it trains in round 2, another before it unmasks in round 3.

    Of a client that falls out earlier the others hold no shares: Flower itself then has no sum.
    """
    return (number, stage, node) in {
        (2, Stage.COLLECT_MASKED_VECTORS, NODES[1]),
        (3, Stage.UNMASK, NODES[2]),
    }


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secure")
    gate = Gate(still_client(folder / "guard"), falls)
    return gate, rounds(gate, folder, 4)


def test_honest_rounds_pass_and_their_sums_stand(honest):
    """What is written anew is what the server can add up: every client sends back what it received."""
    gate, transcript = honest
    assert gate.broken == []
    assert [record.aggregate is not None for record in transcript.rounds] == [True] * 4
    # 4 clients x 4 stages x 4 rounds, but for those that fell out and the stages after that
    assert len(gate.seen) == 64 - 2 - 1
    first, last = transcript.rounds[0].received_by(None), transcript.rounds[-1].received_by(None)
    for name, tensor in first.tensors.items():
        np.testing.assert_allclose(last.tensors[name].numpy(), tensor.numpy(), atol=1e-4)


def of_stage(gate, stage):
    _, node, memory, answer, received = next(one for one in gate.seen if one[0] == stage)
    return node, deepcopy(memory), dict(config_record_from_proto(answer)), received


def vector(array):
    return npy_header(array) + array.tobytes()


def longer(values):
    values["masked_params"].append(vector(np.zeros(3, np.int64)))


def flat(values):
    values["masked_params"][1] = vector(np.zeros(7, np.int64))


def real(values):
    values["masked_params"][0] = vector(np.zeros(1))


def high_bits(values):
    """Flower sends 64 bits of which 32 are used."""
    array = np.frombuffer(values["masked_params"][1][-8:], np.int64)
    assert array[0] < 2**32
    values["masked_params"][1] = values["masked_params"][1][:-8] + (array + 2**40).tobytes()


def other_key(values):
    values["row"] = b"a row"


def no_key(values):
    values["pk1"] = b"a row"


def key_and_more(values):
    values["pk2"] += b"a row"


def stranger(values):
    values["dsts"][0] = 99


def fewer(values):
    del values["dsts"][0], values["ctxts"][0]


def no_token(values):
    values["ctxts"][0] = b"A" * len(values["ctxts"][0])


def long_token(values):
    values["ctxts"][0] += b"AAAA"


def other_owner(values):
    values["nids"][0] = 99


def long_share(values):
    values["shares"][0] += bytes(16)


def share_of_nobody(values):
    values["shares"][0] = (77).to_bytes(4, "little") + values["shares"][0][4:]


@pytest.mark.parametrize(
    ("stage", "change", "word"),
    [
        (Stage.SETUP, no_key, "no public key"),
        (Stage.SETUP, key_and_more, "another form"),
        (Stage.SETUP, other_key, "other keys"),
        (Stage.SHARE_KEYS, stranger, "other receivers"),
        (Stage.SHARE_KEYS, fewer, "other receivers"),
        (Stage.SHARE_KEYS, no_token, "another form"),
        (Stage.SHARE_KEYS, long_token, "another form|no encrypted"),
        (Stage.SHARE_KEYS, other_key, "other keys"),
        (Stage.COLLECT_MASKED_VECTORS, longer, "another number"),
        (Stage.COLLECT_MASKED_VECTORS, flat, "type or shape"),
        (Stage.COLLECT_MASKED_VECTORS, real, "type or shape"),
        (Stage.COLLECT_MASKED_VECTORS, high_bits, "beyond the modulus"),
        (Stage.COLLECT_MASKED_VECTORS, other_key, "other keys"),
        (Stage.UNMASK, other_owner, "others than the server named"),
        (Stage.UNMASK, long_share, "another size"),
        (Stage.UNMASK, share_of_nobody, "another form"),
        (Stage.UNMASK, other_key, "other keys"),
    ],
)
def test_an_answer_that_the_protocol_does_not_give_is_refused(honest, stage, change, word):
    node, memory, values, received = of_stage(honest[0], stage)
    change(values)
    record = config_record_to_proto(apps.ConfigRecord(values))
    with pytest.raises(BadShare, match=word):
        rebuilt_share(record, memory, own=node, received=received)


@pytest.mark.parametrize("stage", [Stage.SETUP, Stage.UNMASK])
def test_an_answer_to_another_stage_is_refused(honest, stage):
    node, memory, _, received = of_stage(honest[0], Stage.COLLECT_MASKED_VECTORS)
    _, _, values, _ = of_stage(honest[0], stage)
    with pytest.raises(BadShare, match="other keys"):
        rebuilt_share(config_record_to_proto(apps.ConfigRecord(values)), memory, own=node, received=received)
    with pytest.raises(BadShare, match="no stage"):
        rebuilt_share(config_record_to_proto(apps.ConfigRecord(values)), {}, own=node, received=received)
