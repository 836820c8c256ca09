"""One party of a logit protocol: a model with its own optimizer, trained on the loss of each phase.

Shape letters: B examples in a step, N examples, K classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glasshouse.rng import Rng
from glasshouse.tensors import descend
from glasshouse.wire import Batch, Trained

Loss = Callable[[Tensor, Tensor], Tensor]
"""(logits (B, K), rows (B,) of the data behind them) → a number."""
CHUNK = 256


@final
class Learner:
    """A model with an Adam optimizer whose state persists over the whole run.

    Uses the channels-last layout: a step of the paper's model on 64 × 64 images takes half the time, with
    the same numbers up to rounding.

    Args:
        model: initial model; trained in place, always in ``eval()`` mode.
        rate: of Adam.
        decay: of Adam.
        batch_size: examples per step.
    """

    def __init__(self, model: nn.Module, *, rate: float, decay: float, batch_size: int) -> None:
        self.model = model.eval()
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
        self.batch_size = batch_size
        self._optimizer = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=decay, fused=True)

    def fit(self, inputs: Tensor, loss: Loss, *, epochs: int, rng: Rng) -> tuple[Tensor, ...]:
        """Minimise ``loss`` over ``inputs`` (N, C, H, W); returns the rows of every step."""
        order: list[Tensor] = []
        for epoch in range(epochs):
            turn = torch.randperm(len(inputs), generator=rng.child(f"epoch/{epoch}").torch())
            order += list(torch.split(turn, self.batch_size))
        for rows in order:
            batch = inputs[rows].contiguous(memory_format=torch.channels_last)
            value = loss(self.model(batch), rows)
            descend(self._optimizer, value)
        return tuple(order)

    def logits(self, inputs: Tensor) -> Tensor:
        """Logits (N, K), without gradients."""
        with torch.no_grad():
            return torch.cat([self.model(part) for part in torch.split(inputs, CHUNK)])

    def state(self) -> dict[str, Tensor]:
        """Parameters and buffers, copied."""
        return {
            name: t.detach().clone(memory_format=torch.contiguous_format)
            for name, t in self.model.state_dict().items()
        }


def loss_on(target: Tensor) -> Loss:
    """Cross-entropy with hard labels (N,) or with probabilities (N, K)."""
    return lambda logits, rows: F.cross_entropy(logits, target[rows])


def divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """KL(teacher ‖ student) of logits, mean over the batch; zero where they agree.

    Examples:
        >>> divergence(torch.zeros(2, 3), torch.zeros(2, 3)).item()
        0.0
    """
    return F.kl_div(F.log_softmax(student, 1), F.softmax(teacher, 1), reduction="batchmean")


def authors_divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """The divergence in the code of Takahashi et al.: roles exchanged, divided by B·K rather than B."""
    return divergence(teacher, student) / student.shape[1]


@final
@dataclass(frozen=True, kw_only=True)
class PrivateEpochs:
    """The honest trainer of a logit protocol: epochs of cross-entropy on the client's own data.

    Attributes:
        learner: the model to train and its optimizer.
        epochs: passes over the data.
    """

    learner: Learner
    epochs: int

    def __call__(self, model: nn.Module, data: Batch, *, rng: Rng, ascend: bool = False) -> Trained:
        """Train ``model``, which must be the learner's own."""
        assert model is self.learner.model  # the optimizer holds this model's parameters
        sign = -1.0 if ascend else 1.0
        loss = loss_on(data.labels)
        order = self.learner.fit(
            data.inputs, lambda logits, rows: sign * loss(logits, rows), epochs=self.epochs, rng=rng
        )
        return Trained(tensors=self.learner.state(), kind="parameters", steps=len(order), order=order)
