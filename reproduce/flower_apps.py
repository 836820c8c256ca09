"""Flower apps of ``reproduce/flower.py``: clients of both APIs, honest servers, and one that crafts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import FitIns, Parameters, ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn

from glasshouse.attacks.base import ActiveAttack
from glasshouse.integrations.flower import watch
from glasshouse.models import build as models
from glasshouse.rng import Rng
from glasshouse.transcript.view import RoundView, View
from glasshouse.wire import Architecture, Batch, Broadcast

RATE = 0.1
SHARES = {"num_shares": 0.5, "reconstruction_threshold": 0.6}
"""SecAgg+: half of the cohort holds shares of a client's secrets, 60 % of these reconstruct them."""


def train(network: nn.Module, data: Batch) -> float:
    """One step of SGD on all of the images."""
    criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(network.parameters(), lr=RATE)
    network.train()
    loss = criterion(network(data.inputs), data.labels)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def message_client(model: Architecture, shards: list[Batch], mods: list[Any]) -> ClientApp:
    """A client of the Message API."""
    app = ClientApp(mods=mods)

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        network = models.build(model)
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        data = shards[int(context.node_config["partition-id"])]
        metrics = MetricRecord({"train_loss": train(network, data), "num-examples": len(data)})
        content = RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


def numpy_client(
    model: Architecture, shards: list[Batch], mods: list[Any], *, each: int | None = None
) -> ClientApp:
    """A client of the legacy API, which SecAgg+ needs; each round uses the next ``each`` images."""

    class Client(NumPyClient):
        def __init__(self, number: int) -> None:
            self.number = number

        def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
            network, data = models.build(model), shards[self.number]
            if each is not None:
                data = data.pick(torch.arange(len(data)).split(each)[config["server-round"] - 1])
            named = zip(network.state_dict(), parameters, strict=True)
            network.load_state_dict({name: torch.tensor(array) for name, array in named})
            loss = train(network, data)
            return [t.numpy() for t in network.state_dict().values()], len(data), {"train_loss": loss}

    def client_fn(context: Context) -> Any:
        return Client(int(context.node_config["partition-id"])).to_client()

    return ClientApp(client_fn=client_fn, mods=mods)


def server(start: Mapping[str, Tensor], rounds: int) -> ServerApp:
    """FedAvg of the Message API."""
    app = ServerApp()

    @app.main()
    def _main(grid: Any, context: Context) -> None:
        del context
        strategy = FedAvg(fraction_evaluate=0.0)
        strategy.start(grid=grid, initial_arrays=ArrayRecord(dict(start)), num_rounds=rounds)

    return app


def secure_server(strategy: LegacyFedAvg, rounds: int, **quantisation: Any) -> ServerApp:
    """A legacy strategy under SecAgg+; ``quantisation``: arguments of ``SecAggPlusWorkflow``."""
    app = ServerApp()

    @app.main()
    def _main(grid: Any, context: Context) -> None:
        legacy = LegacyContext(
            context=context, config=ServerConfig(num_rounds=rounds), strategy=watch(strategy, grid)
        )
        DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(**SHARES, **quantisation))(grid, legacy)

    return app


def averaging(start: Mapping[str, Tensor], *, cohort: float = 1.0) -> LegacyFedAvg:
    """Legacy FedAvg."""
    return LegacyFedAvg(
        fraction_fit=cohort, fraction_evaluate=0.0, initial_parameters=_parameters(start, list(start))
    )


@dataclass
class Crafting:
    """The malicious server's part of a round: obtain the model from an attack, and store its memory.

    Args:
        attack: the active attack.
        view: the attack's knowledge before the first round.
        memory: the attack's memory of the models that it sent.
    """

    attack: ActiveAttack
    view: View
    memory: dict[str, Tensor] = field(default_factory=dict)

    def parameters(self, number: int) -> Parameters:
        """The model of round ``number`` (from 0), in Flower's format."""
        honest = self.view.rounds[0].broadcast
        asked = Broadcast(round=number, architecture=honest.architecture, tensors=honest.tensors)
        view = View(
            terms=self.view.terms,
            threat=self.view.threat,
            rounds=(RoundView(round=number, broadcast=asked),),
            grants=self.view.grants,
            memory=self.memory,
        )
        sent = self.attack.craft(view, rng=Rng.root(3).child(f"craft/{number}"))
        assert sent is not None  # attacks run here always send a model
        self.memory |= sent.memory
        return _parameters(sent.default.tensors, list(honest.tensors))


class MaliciousFedAvg(LegacyFedAvg):
    """FedAvg that sends a crafted model in every round."""

    def __init__(self, crafting: Crafting) -> None:
        start = crafting.view.rounds[0].broadcast.tensors
        super().__init__(
            fraction_evaluate=0.0,
            initial_parameters=_parameters(start, list(start)),
            on_fit_config_fn=lambda number: {"server-round": number},
        )
        self._crafting = crafting

    def configure_fit(self, server_round: int, parameters: Parameters, client_manager: Any) -> list[Any]:
        """FedAvg's clients, with the crafted model instead of its own."""
        del parameters
        crafted = self._crafting.parameters(server_round - 1)
        return [
            (proxy, FitIns(crafted, instruction.config))
            for proxy, instruction in super().configure_fit(server_round, crafted, client_manager)
        ]


def _parameters(tensors: Mapping[str, Tensor], order: list[str]) -> Parameters:
    return ndarrays_to_parameters([tensors[name].numpy() for name in order])
