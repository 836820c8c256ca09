"""An app without torch, in the shape of Flower's for JAX: kernels (in, out), biases first, no names."""

import numpy as np
from flower_apps import EXAMPLES, shard
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from glasshouse.integrations.flower import Layout, used

LAYOUT = Layout(names=("hidden.bias", "hidden.weight", "out.bias", "out.weight"))
BATCH, RATE = 4, 0.1


class Net(nn.Module):
    """The same network in torch, for an audit."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x):
        return self.out(self.hidden(x.flatten(1)).relu())


def begin():
    """Hidden bias and kernel, output bias and kernel."""
    draws = np.random.default_rng(0)
    return [
        np.zeros(16, np.float32), draws.normal(0, 0.1, (64, 16)).astype(np.float32),
        np.zeros(10, np.float32), draws.normal(0, 0.1, (16, 10)).astype(np.float32),
    ]  # fmt: skip


def step(arrays, pictures, labels):
    """One step of gradient descent on the mean cross-entropy."""
    b, k, c, m = arrays
    rows = pictures.reshape(len(pictures), -1)
    hidden = np.maximum(rows @ k + b, 0)
    scores = np.exp(hidden @ m + c)
    wrong = (scores / scores.sum(1, keepdims=True) - np.eye(10)[labels]) / len(labels)
    back = wrong @ m.T * (hidden > 0)
    slopes = (back.sum(0), rows.T @ back, wrong.sum(0), hidden.T @ wrong)
    return [(a - RATE * s).astype(np.float32) for a, s in zip(arrays, slopes, strict=True)]


def client(mods=()):
    """Two steps on pictures of its own."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def _train(message, context):
        pictures, labels = (t.numpy() for t in shard(context.node_config["partition-id"]))
        arrays = message.content["arrays"].to_numpy_ndarrays()
        for at in range(0, EXAMPLES, BATCH):
            used(pictures[at : at + BATCH], labels[at : at + BATCH])
            arrays = step(arrays, pictures[at : at + BATCH], labels[at : at + BATCH])
        content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": EXAMPLES})}
        return Message(RecordDict(content), reply_to=message)

    return app


def server():
    """One round."""
    app = ServerApp()

    @app.main()
    def _main(grid, context):
        strategy, config = FedAvg(fraction_evaluate=0.0), ConfigRecord({"lr": RATE})
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(begin()),
            num_rounds=1,
            train_config=config,
        )

    return app
