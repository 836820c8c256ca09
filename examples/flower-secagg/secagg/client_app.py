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

    def __init__(self, partition: int) -> None:
        self.images, self.labels = load_data(partition)

    def fit(self, parameters, config):
        """One round of training."""
        net = network()
        named = zip(net.state_dict(), parameters, strict=True)
        net.load_state_dict({name: torch.tensor(array) for name, array in named})
        loss = train(net, self.images, self.labels)
        return [t.numpy() for t in net.state_dict().values()], len(self.labels), {"train_loss": loss}


def client_fn(context: Context):
    """The client of this node."""
    return Client(int(context.node_config["partition-id"])).to_client()


app = ClientApp(client_fn=client_fn, mods=[secaggplus_mod, truth_mod("~/glasshouse/truth-secagg")])
