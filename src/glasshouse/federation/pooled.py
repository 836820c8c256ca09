"""Clients of one round whose gradients a secure sum hides, computed in one pass.

A server that sees only the sum sees no single gradient, so none is computed: what is differentiated is the
weighted sum of the clients' losses. The sum is the same up to rounding, and takes a half to a sixth of the
time of small clients one after the other (docs/decisions/0342).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import torch
from torch import Tensor, nn

from glasshouse.federation.client import LocalTraining
from glasshouse.federation.setting import Answer, Request, Setting
from glasshouse.interfaces import task_of
from glasshouse.settings import ORDINARY
from glasshouse.tensors import check_finite, norm
from glasshouse.wire import Trained

EXAMPLES: Final = 256
"""Examples of one pass, unless a single client has more: beyond it a pass is no faster, but larger."""
FEWEST: Final = 4
"""Clients from which the two that are computed twice, for the comparison, are worth it."""
TOLERANCE: Final = 1e-4
"""Norm of the difference between a pooled sum and the clients' own gradients, relative to these."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Joint:
    """The weighted sum of some clients' gradients.

    Attributes:
        clients: their ids.
        tensors: the sum, by parameter.
        weights: of the clients in it.
        examples: of all of them.
        trained: what each did, without its gradient.
    """

    clients: tuple[int, ...]
    tensors: Mapping[str, Tensor]
    weights: tuple[float, ...]
    examples: int
    trained: tuple[Trained, ...]


def is_poolable(setting: Setting) -> bool:
    """Whether nothing happens to a single gradient: plain steps, no defence, guard or rounding."""
    terms = setting.terms
    return (
        terms.secure_sum
        and terms.sends == "gradient"
        and terms.training == ORDINARY
        and not terms.options.get("dropout")
        and not terms.options.get("sum_bits")
        and not (setting.defenses or setting.behaviours or setting.guard or setting.crew)
    )


@final
class Pool:
    """Sums of gradients over clients that received the same model.

    The first two clients are also computed one by one. Where the sum differs, the network lets examples
    influence each other (or draws at random), and nothing is pooled in this federation.

    Args:
        setting: that :func:`is_poolable`.
        load: the module with what a request's client received.
        answer: the client's own computation, for the comparison.
    """

    def __init__(
        self,
        setting: Setting,
        *,
        load: Callable[[Request], nn.Module],
        answer: Callable[[Request], Answer | None],
    ) -> None:
        self._setting, self._load, self._answer = setting, load, answer
        self._agrees: bool | None = None

    def takes(self, requests: Sequence[Request]) -> bool:
        """Whether these requests are pooled: clients got the same model, and a sum was seen to agree."""
        first = next(self._parts(requests), [])
        if len(requests) < FEWEST or len(first) < 2:
            return False
        if self._agrees is None:
            self._agrees = self._compare(first[:2])
        return self._agrees

    def sums(self, requests: Sequence[Request]) -> Iterator[Joint]:
        """The sums of parts of the requests, in their order."""
        yield from map(self._sum, self._parts(requests))

    def _parts(self, requests: Sequence[Request]) -> Iterator[list[Request]]:
        """Neighbours that received the same tensors, at most ``EXAMPLES`` together."""
        part: list[Request] = []
        for request in requests:
            size = self._setting.terms.batch_size
            if part and (not _same_model(part[0], request) or (len(part) + 1) * size > EXAMPLES):
                yield part
                part = []
            part.append(request)
        if part:
            yield part

    def _sum(self, part: Sequence[Request]) -> Joint:
        """One backward pass for all of a part's clients."""
        setting = self._setting
        device, model = setting.device, self._load(part[0]).to(setting.device)
        trainer = LocalTraining.of(setting.terms, round=part[0].round, device=device)
        trainer.prepare(model)
        parameters, task = trainer.parameters(model), task_of(model)
        batches, orders = [], []
        for request in part:
            data = setting.shard(request.client)
            trainer.check_enough(data, subject="local training")
            # the stream of Clients.answer, so that pooled clients draw the examples that they draw alone
            rng = request.rng.child("train").child("order")
            orders.append(tuple(trainer.schedule(len(data), rng=rng)))
            batches.append(data.pick(orders[-1][0]))
        sized = setting.terms.weighting == "size"
        weights = tuple(float(len(batch)) if sized else 1.0 for batch in batches)
        inputs = torch.cat([batch.inputs for batch in batches]).to(device)
        labels = torch.cat([batch.labels for batch in batches]).to(device)
        # One forward pass; but each client's loss is a mean over its own labels, whatever these are.
        sizes = [len(batch) for batch in batches]
        parts = (torch.split(tensor, sizes) for tensor in (model(inputs), labels, inputs))
        losses = [
            weight * task.loss(outputs, own, rows, reduction="mean")
            for weight, outputs, own, rows in zip(weights, *parts, strict=True)
        ]
        slopes = torch.autograd.grad(
            torch.stack(losses).sum(), list(parameters.values()), allow_unused=True, materialize_grads=True
        )
        tensors = {name: slope.cpu() for name, slope in zip(parameters, slopes, strict=True)}
        model.to("cpu")
        first, last = part[0].client, part[-1].client
        check_finite(tensors, subject=f"updates of clients {first} to {last} in round {part[0].round}")
        return Joint(
            clients=tuple(request.client for request in part),
            tensors=tensors,
            weights=weights,
            examples=sum(sizes),
            trained=tuple(Trained(tensors={}, kind="gradient", steps=1, order=order) for order in orders),
        )

    def _compare(self, pair: Sequence[Request]) -> bool:
        """Whether the sum of two clients is that of their own gradients."""
        own = [answer.update for answer in map(self._answer, pair) if answer and answer.update]
        try:
            joint = self._sum(pair)
        except (RuntimeError, TypeError, ValueError, LookupError):  # it takes no batch of this size
            return False
        total = {name: torch.zeros_like(t) for name, t in joint.tensors.items()}
        for weight, update in zip(joint.weights, own, strict=True):
            total = {name: t + weight * update.tensors[name] for name, t in total.items()}
        difference = {name: joint.tensors[name] - t for name, t in total.items()}
        return norm(difference) <= TOLERANCE * norm(total)


def _same_model(one: Request, other: Request) -> bool:
    """Whether both clients received the very same tensors."""
    return one.architecture == other.architecture and (
        one.tensors is other.tensors
        or (
            one.tensors.keys() == other.tensors.keys()
            and all(t is other.tensors[name] for name, t in one.tensors.items())
        )
    )
