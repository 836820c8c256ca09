"""The server: FedAvg under SecAgg+, captured."""

import torch
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp

from glasshouse.integrations.flower import capture, watch
from secagg.task import network

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run FedAvg under SecAgg+, on all clients, of which there are three or more."""
    torch.manual_seed(0)
    initial = ndarrays_to_parameters([t.numpy() for t in network().state_dict().values()])
    strategy = FedAvg(
        fraction_evaluate=0.0, min_fit_clients=3, min_available_clients=3, initial_parameters=initial
    )
    legacy = LegacyContext(
        context=context,
        config=ServerConfig(num_rounds=int(context.run_config["num-server-rounds"])),
        strategy=watch(strategy, grid),
    )
    secure = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, max_weight=100.0)
    DefaultWorkflow(fit_workflow=secure)(grid, legacy)


app = capture(app, "~/glasshouse/capture-secagg", model=(network, (1, 8, 8), 10))
