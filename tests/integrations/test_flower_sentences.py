"""A client that fine-tunes a language model does not send an update in which its sentences stand."""

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from glasshouse.data.sources import load
from glasshouse.integrations.flower import guard_mod, preflight_mod
from glasshouse.interfaces import mean_loss
from glasshouse.models import build as models
from glasshouse.rng import Rng
from glasshouse.store import read_jsonl
from glasshouse.wire import Architecture

SOURCE = load("sentences")
GPT = Architecture(
    name="small_gpt",
    inputs=SOURCE.inputs,
    task=SOURCE.task,
    arguments={"width": 64},
)


def answer(folder, count):
    """What a client sends after one step on ``count`` of its sentences, behind both guards."""
    batch = SOURCE.splits["train"].batch(torch.arange(count))

    def train(message, context):
        network = models.build(GPT)
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        mean_loss(network, batch).backward()
        torch.optim.SGD(network.parameters(), lr=0.1).step()
        metrics = MetricRecord({"num-examples": count})
        content = RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    def data(context):
        return batch.inputs, batch.labels

    def checked(message, context):
        return preflight_mod(GPT, data=data, reports=folder)(message, context, train)

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0
    start = ArrayRecord(models.build(GPT, rng=Rng.root(3)).state_dict())
    content = RecordDict({"arrays": start, "config": ConfigRecord({"server-round": 1})})
    message = Message(content, dst_node_id=7, message_type="train")
    context = Context(run_id=1, node_id=7, node_config={}, state=RecordDict(), run_config={})
    return guard_mod(GPT, data=data, reports=folder)(message, context, checked)


@pytest.mark.parametrize(("count", "sent"), [(2, False), (40, True)])
def test_sentences_that_stand_in_an_update_are_not_sent(tmp_path, count, sent):
    reply = answer(tmp_path, count)
    assert reply.has_content() == sent
    (line,) = read_jsonl(tmp_path / "7.jsonl")
    assert line["decision"] == ("sent" if sent else "refused")
    summary = line["reasons"][0 if sent else 1]
    assert f"{'none' if sent else 'all'} of your {count} sentences stand" in summary
    assert sent == ("leaves no room" in summary)
