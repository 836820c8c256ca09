"""The client: trains on its own images, sends parameters, a loss and a count."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from glasshouse.integrations.flower import truth_mod
from quickstart.task import Net, load_data, train

app = ClientApp(mods=[truth_mod("~/glasshouse/truth")])  # in test clients of an audit, and nowhere else


@app.train()
def fit(message: Message, context: Context) -> Message:
    """One round of training."""
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    config = context.run_config
    batches = load_data(int(context.node_config["partition-id"]), int(config["batch-size"]))
    loss = train(net, batches, int(config["local-epochs"]), float(config["learning-rate"]))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(batches.dataset)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)
