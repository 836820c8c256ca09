"""Crafted models that give nothing away when they arrive: a read-out opens during local training.

The layer is that of :func:`benchmarks.guard.kinds.pairs`. What stands behind it multiplies by zero, so that
no gradient reaches it at first. A client that takes several local steps opens it itself.
"""

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.guard import kinds

EPOCHS, STEP, RATE = 2, 16, 0.1
"""How the client trains: plain SGD."""


class Behind(kinds.Net):
    """The wide layer in front of something that may be zero: a scale, a factor, the head, two factors."""

    def __init__(self, what: str) -> None:
        super().__init__("linear")
        self.what = what
        if what == "a scale":
            self.norm = nn.LayerNorm(32)
        if what in ("a factor", "two factors"):
            self.factor = nn.Parameter(torch.ones(32))
        if what == "two factors":
            self.whole = nn.Parameter(torch.ones(1))
        if what == "the head":
            self.skip = nn.Linear(3 * kinds.SIDE**2, kinds.CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        flat = inputs.flatten(1)
        hidden = F.relu(self.middle(F.relu(self.wide(flat))))
        if self.what == "a scale":
            hidden = self.norm(hidden)
        if self.what in ("a factor", "two factors"):
            hidden = hidden * self.factor
        logits: Tensor = self.head(hidden)
        if self.what == "two factors":
            logits = logits * self.whole
        return logits + self.skip(flat) if self.what == "the head" else logits

    def close(self) -> None:
        """Set what stands behind the layer to zero."""
        with torch.no_grad():
            if self.what == "a scale":
                self.norm.weight.zero_()
            elif self.what == "the head":
                self.head.weight.zero_()
            else:
                self.factor.zero_()
            if self.what == "two factors":
                self.whole.zero_()


def behind(what: str, known: Tensor, seed: int) -> kinds.Case:
    """Pairs of rows behind ``what``, which is zero."""
    open_case = kinds.pairs("linear", known, seed)
    model = Behind(what)
    for name in ("wide", "middle"):
        model.get_submodule(name).load_state_dict(open_case.model.get_submodule(name).state_dict())
    model.close()
    return kinds.Case(model=model, read_outs=open_case.read_outs)


def train(model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
    """The client's local training, in place."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        for inputs, labels in zip(*(part.split(STEP) for part in batch), strict=True):
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(inputs), labels))
            optimizer.step()


def change(before: nn.Module, after: nn.Module) -> dict[str, Tensor]:
    """What the parameters changed by."""
    pairs = zip(before.named_parameters(), after.parameters(), strict=True)
    return {name: (new - old).detach() for (name, old), new in pairs}


DELAYED: Final[Mapping[str, Callable[[Tensor, int], kinds.Case]]] = {
    f"behind {what} of zeros": lambda known, seed, what=what: behind(what, known, seed)
    for what in ("a scale", "a factor", "two factors", "the head")
}
