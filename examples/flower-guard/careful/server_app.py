"""The server: FedAvg; with ``equal-rows`` it sends a model that no client should train on."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from careful.task import network

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run FedAvg."""
    torch.manual_seed(0)
    weights = network().state_dict()
    if context.run_config["equal-rows"]:
        weights["3.weight"][:] = weights["3.weight"][0]
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    rounds = int(context.run_config["num-server-rounds"])
    strategy.start(grid=grid, initial_arrays=ArrayRecord(weights), num_rounds=rounds)
