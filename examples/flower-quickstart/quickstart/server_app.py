"""The server: FedAvg, captured."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from glasshouse.integrations.flower import capture
from quickstart.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run FedAvg."""
    torch.manual_seed(0)
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    rounds = int(context.run_config["num-server-rounds"])
    strategy.start(grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=rounds)


app = capture(app, "~/glasshouse/capture", model=(Net, (1, 8, 8), 10), normalize=(0.5, 0.5))
