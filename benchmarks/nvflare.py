"""CPU time of the FLARE filters on one message of 1.6 million numbers.

Run: python -m benchmarks.nvflare [--repeats 20]
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import FLContextKey, ReservedKey
from nvflare.apis.fl_context import FLContext

from glasshouse.gate.log import create_key
from glasshouse.integrations.nvflare import CaptureResults, CaptureTasks, GateIn, GateOut
from glasshouse.transcript.files import describe_architecture
from glasshouse.wire import Architecture

SHAPES = {"0.weight": (512, 3072), "0.bias": (512,), "2.weight": (10, 512), "2.bias": (10,)}
MODEL = describe_architecture(Architecture.of("mlp", (3, 32, 32), 10, {"hidden": 512}))


def context(client):
    """What a filter is told of a task."""
    ctx, peer = FLContext(), FLContext()
    peer.set_prop(ReservedKey.IDENTITY_NAME, client, private=False)
    ctx.set_peer_context(peer)
    ctx.set_prop(FLContextKey.TASK_NAME, "train")
    return ctx


def message(rng, scale, number=None):
    """A model or an update."""
    data = {n: rng.normal(0, scale, s).astype(np.float32) for n, s in SHAPES.items()}
    meta = {"NUM_STEPS_CURRENT_ROUND": 4}
    made = DXO(data_kind=DataKind.WEIGHTS, data=data, meta=meta).to_shareable()
    if number is not None:
        made.set_header("current_round", number)
    return made


def timed(function, *arguments):
    """Milliseconds of CPU of one call."""
    start = time.process_time()
    function(*arguments)
    return 1000 * (time.process_time() - start)


def capture_times(folder, rng, model, repeats):
    """Medians of a task and a result."""
    arguments = (str(folder), model, {"batch_size": 32})
    tasks, results, ctx = CaptureTasks(*arguments), CaptureResults(*arguments), context("site-1")
    sent = [
        (timed(tasks.process, message(rng, 0.05, i), ctx), timed(results.process, message(rng, 0.05), ctx))
        for i in range(repeats)
    ]
    return [statistics.median(column) for column in zip(*sent, strict=True)]


def gate_times(folder, rng, repeats):
    """Medians of a task and a result."""
    folder.mkdir()
    policy = folder / "gate.toml"
    policy.write_text('format = 1\nsite = "s"\ndataset = "d"\n[out]\nnorm = 1000.0\n')
    create_key(folder / "gate.ed25519")
    arrive, leave, ctx = GateIn(str(policy)), GateOut(str(policy)), context("server")
    sent = [
        (timed(arrive.process, message(rng, 0.05, i), ctx), timed(leave.process, message(rng, 0.05), ctx))
        for i in range(repeats)
    ]
    return [statistics.median(column) for column in zip(*sent, strict=True)]


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20, help="messages of each kind")
    repeats = parser.parse_args().repeats
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as place:
        rows = {
            "capture, messages only": capture_times(Path(place) / "a", rng, None, repeats),
            "capture, with transcript": capture_times(Path(place) / "b", rng, MODEL, repeats),
            "gate": gate_times(Path(place) / "c", rng, repeats),
        }
    for name, (arriving, leaving) in rows.items():
        print(f"{name:26} task {arriving:6.1f} ms   result {leaving:6.1f} ms")


if __name__ == "__main__":
    main()
