"""The client: its parameters are masked; its count and its loss are not."""

import torch
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Context

from glasshouse.integrations.flower import truth_mod
from secagg.task import load_data, network, train


class Client(NumPyClient):
    """Trains on its own images."""

    def __init__(self, partition: int, learning_rate: float) -> None:
        self.images, self.labels = load_data(partition)
        self.learning_rate = learning_rate

    def fit(self, parameters, config):
        """One round of training."""
        net = network()
        named = zip(net.state_dict(), parameters, strict=True)
        net.load_state_dict({name: torch.tensor(array) for name, array in named})
        loss = train(net, self.images, self.labels, self.learning_rate)
        return [t.numpy() for t in net.state_dict().values()], len(self.labels), {"train_loss": loss}


def client_fn(context: Context):
    """The client of this node."""
    rate = float(context.run_config["learning-rate"])
    return Client(int(context.node_config["partition-id"]), rate).to_client()


app = ClientApp(client_fn=client_fn, mods=[secaggplus_mod, truth_mod("~/glasshouse/truth-secagg")])
