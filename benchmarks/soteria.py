"""Soteria's scores on ResNet-18: ours against one backward pass per feature, and the resulting masks.

Run with ``python benchmarks/soteria.py``. One thread, alternating, CPU seconds of this process. Two
baselines: a backward pass per feature to the input only, and one to the input and all parameters (like
``backward()``, and hence the paper's published code).
"""

import argparse
import functools
import statistics
import time

import torch
from torch import Tensor, nn

from glasshouse.federation.defenses.base import smallest
from glasshouse.federation.defenses.soteria import defended_layer, feature_scores
from glasshouse.models.zoo.resnet import resnet18
from glasshouse.process import prepare_process


def one_by_one(model: nn.Module, name: str, inputs: Tensor, *, whole: bool) -> Tensor:
    """The scores of one example, feature by feature; ``whole``: backward passes include the parameters."""
    x = inputs.clone().requires_grad_(True)
    tensors: list[Tensor] = []
    layer = model.get_submodule(name)
    handle = layer.register_forward_pre_hook(lambda _, received: tensors.append(received[0]))
    model(x)
    handle.remove()
    scores = []
    for r in tensors[0][0]:
        if whole:
            x.grad = None
            r.backward(retain_graph=True)
            gradient = x.grad
        else:
            (gradient,) = torch.autograd.grad(r, x, retain_graph=True)
        scores.append(gradient.norm() / (r.detach().abs() + 1e-10))
    return torch.stack(scores)


WAYS = {
    "ours": feature_scores,
    "one pass per feature, to the input": functools.partial(one_by_one, whole=False),
    "one pass per feature, to everything": functools.partial(one_by_one, whole=True),
}


def main() -> None:
    """Time all implementations, alternating, and compare their masks at 80 %."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--width", type=int, default=64)
    settings = parser.parse_args()
    prepare_process()
    torch.manual_seed(0)
    model = resnet18((3, 32, 32), 10, width=settings.width).eval()
    name = defended_layer(model)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    masks = {}
    for _ in range(settings.repeats):
        inputs = torch.rand(1, 3, 32, 32)
        for way, scores in WAYS.items():
            start = time.process_time()
            masks[way] = smallest(scores(model, name, inputs), 0.8)
            seconds[way].append(time.process_time() - start)
        if not all(torch.equal(mask, masks["ours"]) for mask in masks.values()):
            print("the masks differ")
    ours = statistics.median(seconds["ours"])
    print(f"{len(masks['ours'])} features, {settings.repeats} images, one thread, median CPU seconds")
    for way, result in seconds.items():
        median = statistics.median(result)
        print(f"{way:36} {median:6.2f}   {median / ours:.2f} times ours")


if __name__ == "__main__":
    main()
