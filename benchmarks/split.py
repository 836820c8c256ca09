"""One iteration of a search for a whole batch of full-size pictures, in stated memory.

``python -m benchmarks.split [--images 64] [--side 224] [--whole]``: a ResNet-18 in evaluation mode, pictures
of noise. Prints the estimate for the batch whole, images at a time, CPU seconds, and the peak memory of the
process. ``--whole`` matches the batch whole instead, for comparison.
"""

import argparse
import json
import math
import time

import torch
from torch import Tensor

from glasshouse.attacks.parts.matching.ghost import Ghost
from glasshouse.attacks.parts.matching.split import ROOM, Pieces, Split
from glasshouse.attacks.parts.search.rows import Evaluation, Rows, room
from glasshouse.executors.base import peak_memory
from glasshouse.models.build import build
from glasshouse.process import prepare_process
from glasshouse.wire import Architecture


def main() -> None:
    """Measure one iteration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--whole", action="store_true")
    arguments = parser.parse_args()
    prepare_process()
    idle = peak_memory()
    rng = torch.Generator().manual_seed(0)
    shape = (3, arguments.side, arguments.side)
    model = build(Architecture.of("resnet18", shape, 10)).eval().requires_grad_(False)
    target = {name: torch.randn(p.shape, generator=rng) for name, p in model.named_parameters()}
    received = dict(model.named_parameters())
    points = torch.rand(1, arguments.images, *shape, generator=rng)
    labels = torch.arange(arguments.images)[None] % 10
    one = Pieces(model, received, size=1).bytes_of_one(points[0], labels[0])
    size = max(1, int(ROOM * room(points.device) / one))
    engine: Ghost | Split = Split(model, received, [target], [{}], size=size)
    if arguments.whole:
        engine = Ghost(model, [target], shape=shape, apart=False)
    square = sum(float(t.double().square().sum()) for t in target.values())

    def loss(x: Tensor, rows: Rows) -> Tensor:
        found = engine(x, labels[rows.index])
        return 1 - found.dot.sum(0) / (found.square.sum(0) * square).sqrt()

    started = time.process_time()
    values, slope = Evaluation(loss)._whole(points, Rows.of(points, victims=1))
    result = {
        "images": arguments.images,
        "side": arguments.side,
        "at_a_time": arguments.images if arguments.whole else size,
        "estimate_gib": one * arguments.images / 2**30,
        "cpu_seconds": time.process_time() - started,
        "peak_gib": peak_memory() * 1e6 / 2**30,
        "idle_gib": idle * 1e6 / 2**30,
        "loss": float(values),
        "slope": math.sqrt(float(slope.double().square().sum())),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
