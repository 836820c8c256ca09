"""The client: without a guard, one line would be another, the import of ``ClientApp``."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

from careful.task import load_data, network, train
from glasshouse.integrations.flower import GuardedClientApp as ClientApp

app = ClientApp()


@app.train()
def fit(message: Message, context: Context) -> Message:
    """One round of training."""
    net = network()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images, labels = load_data(context)
    loss = train(net, images, labels)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(labels)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)
