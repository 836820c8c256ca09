"""The process behind :mod:`glasshouse.gate.preflight.site`: ``FOLDER module:function``; prints JSON."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import torch

from glasshouse.guard.preflight import preflight


def main(folder: Path, loader: str) -> None:
    """Look for the loader's examples in the difference of ``sent.npz`` and ``received.npz``."""
    sys.path.insert(0, str(Path.cwd()))
    module, _, name = loader.partition(":")
    network, inputs, labels = getattr(importlib.import_module(module), name)()
    with np.load(folder / "sent.npz") as sent, np.load(folder / "received.npz") as received:
        new = {key: torch.from_numpy(sent[key]) for key in sent.files}
        old = {key: torch.from_numpy(received[key]) for key in received.files}
    network.load_state_dict(old)
    parameters = [key for key, _ in network.named_parameters()]
    outcome = preflight({key: new[key] - old[key] for key in parameters}, network, inputs, labels)
    recognised = len({leak.example for leak in outcome.leaks})
    answer = {
        "examples": outcome.examples,
        "recognised": recognised,
        "controlled": outcome.controlled,
    }
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
