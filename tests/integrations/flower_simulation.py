"""Two rounds in Flower's own simulation engine, captured and guarded: ``flower_simulation.py FOLDER``."""

import sys
from pathlib import Path

import flower_apps as apps
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.simulation import run_simulation

from glasshouse.integrations.flower import GuardedClientApp, capture


def main(folder):
    """Simulate three clients that train with a guard."""
    client = GuardedClientApp(reports=folder / "guard", most=apps.EXAMPLES)

    @client.train()
    def _train(message, context):
        network = apps.start()
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        loss = apps.train(network, context.node_config["partition-id"])
        metrics = MetricRecord({"train_loss": loss, "num-examples": apps.EXAMPLES})
        content = RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    server = capture(apps.message_server(2), folder / "run", model=apps.MODEL, terms=apps.TERMS)
    run_simulation(server, client, 3, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
