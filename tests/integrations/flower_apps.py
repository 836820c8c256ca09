"""Small Flower apps on the digits: clients of both APIs, and servers of every kind that capture supports."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.nn import functional

from glasshouse.data.sources import load as load_source
from glasshouse.integrations.flower import used, watch
from glasshouse.models import build as models
from glasshouse.rng import Rng
from glasshouse.wire import Architecture

MODEL = Architecture.of("lenet5", (1, 8, 8), 10)
DIGITS = load_source("digits")
RATE, BATCH, EXAMPLES = 0.05, 8, 16
TERMS = {"batch_size": BATCH, "local_epochs": 1, "learning_rate": RATE}


def start(model=MODEL):
    """The network with its first weights."""
    return models.build(model, rng=Rng.root(3))


def shard(number):
    """The private digits of client ``number``: pixels in [0, 1], and labels."""
    rows = slice(number * EXAMPLES, (number + 1) * EXAMPLES)
    batch = DIGITS.splits["test"].batch(torch.arange(len(DIGITS.splits["test"]))[rows])
    return batch.inputs, batch.labels


def called_loss(logits, labels, inputs):
    """Cross-entropy as a function."""
    return functional.cross_entropy(logits, labels)


def told_loss(logits, labels, inputs):
    """A loss that nobody else knows: the client says what it uses."""
    used(inputs, labels)
    return (logits.logsumexp(1) - logits.gather(1, labels[:, None])[:, 0]).mean()


def train(network, number, *, loss=None, normalize=(0.0, 1.0), optimizer=None, order=None):
    """Training as people write it, by default one pass of SGD; returns the mean loss."""
    images, labels = shard(number)
    images = (images - normalize[0]) / normalize[1]
    module = nn.CrossEntropyLoss()
    criterion = loss or (lambda logits, labels, inputs: module(logits, labels))
    steps = torch.optim.SGD(network.parameters(), lr=RATE) if optimizer is None else optimizer(network)
    network.train()
    losses = []
    for rows in order or torch.arange(EXAMPLES).split(BATCH):
        steps.zero_grad()
        value = criterion(network(images[rows]), labels[rows], images[rows])
        value.backward()
        steps.step()
        losses.append(value.item())
    return sum(losses) / len(losses)


def message_client(model=MODEL, mods=(), fails=(), network=None, order=None, **settings):
    """A client of the Message API; clients in ``fails`` raise. ``settings``: of :func:`train`."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        number = context.node_config["partition-id"]
        if number in fails:
            raise RuntimeError("out of memory")
        mine = network() if network else start(model)
        mine.load_state_dict(message.content["arrays"].to_torch_state_dict())
        turn = message.content["config"]["server-round"] - 1
        loss = train(mine, number, order=None if order is None else order(turn, number), **settings)
        metrics = MetricRecord({"train_loss": loss, "num-examples": EXAMPLES})
        content = RecordDict({"arrays": ArrayRecord(mine.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    @app.evaluate()
    def _evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"eval_loss": 1.5, "num-examples": EXAMPLES})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def numpy_client(mods=(), model=MODEL):
    """A client of the legacy API: lists of arrays."""

    class Client(NumPyClient):
        def __init__(self, number):
            self.number = number

        def fit(self, parameters, config):
            network = start(model)
            state = zip(network.state_dict(), parameters, strict=True)
            network.load_state_dict({name: torch.tensor(a) for name, a in state})
            loss = train(network, self.number)
            return [t.numpy() for t in network.state_dict().values()], EXAMPLES, {"train_loss": loss}

        def evaluate(self, parameters, config):
            return 1.5, EXAMPLES, {"accuracy": 0.5}

    return ClientApp(
        client_fn=lambda context: Client(context.node_config["partition-id"]).to_client(), mods=list(mods)
    )


def message_server(rounds=2, model=MODEL, strategy=None):
    """FedAvg of the Message API."""
    app = ServerApp()

    @app.main()
    def _main(grid, context):
        (strategy or FedAvg()).start(
            grid=grid,
            initial_arrays=ArrayRecord(start(model).state_dict()),
            num_rounds=rounds,
            train_config=ConfigRecord({"lr": RATE}),
        )

    return app


def first_parameters(model=MODEL):
    """The first weights, as legacy strategies have them."""
    return ndarrays_to_parameters([t.numpy() for t in start(model).state_dict().values()])


def _legacy_strategy():
    return LegacyFedAvg(initial_parameters=first_parameters())


def strategy_server(rounds=2):
    """A legacy strategy, through ``server_fn``."""
    return ServerApp(
        server_fn=lambda context: ServerAppComponents(
            strategy=_legacy_strategy(), config=ServerConfig(num_rounds=rounds)
        )
    )


def workflow_server(rounds=2, secure=False, strategy=None, **settings):
    """A legacy strategy in a workflow, with SecAgg+ (``settings`` of it) or without."""
    app = ServerApp()

    @app.main()
    def _main(grid, context):
        terms = {"num_shares": 3, "reconstruction_threshold": 2, "max_weight": 100.0, **settings}
        fit = SecAggPlusWorkflow(**terms) if secure else None
        legacy = LegacyContext(
            context=context,
            config=ServerConfig(num_rounds=rounds),
            strategy=watch(strategy or _legacy_strategy(), grid),
        )
        (DefaultWorkflow(fit_workflow=fit) if fit else DefaultWorkflow())(grid, legacy)

    return app
