"""The client: does the deed that the server names."""

from flwr.app import Message
from flwr.clientapp import ClientApp

from gate_app.deeds import reply

app = ClientApp()


@app.train()
def fit(message, context):
    received = {name: array.numpy() for name, array in message.content["arrays"].items()}
    task = message.content["task"]
    seed = int(context.run_config["seed"]) + int(context.node_config["partition-id"])
    content = reply(task["deed"], received, seed=seed, turn=task["turn"])
    return Message(content, reply_to=message)
