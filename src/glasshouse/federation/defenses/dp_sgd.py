"""DP-SGD in local training with Opacus: clip each example's gradient and add noise to every step.

Source: Abadi et al. 2016, arXiv:1607.00133, Algorithm 1; Yousefpour et al. 2021, arXiv:2109.12298 (Opacus).
As in Algorithm 1, each step includes every example with a fixed probability (Poisson sampling), since the
accounting is wrong for shuffled batches (Chua et al. 2024, arXiv:2403.17673): a step may use more or fewer
examples than ``batch_size``, or none. The sum is divided by the expected size.

Neighbouring relation: one example of the client more or less. The number of examples is public.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from torch import Tensor, nn

from glasshouse.errors import BadValue, Inapplicable, not_installed
from glasshouse.federation.client import LocalTraining
from glasshouse.federation.defenses.accounting import needed_noise, spent_epsilon
from glasshouse.federation.defenses.base import NamedDefense, describe_mechanism
from glasshouse.federation.defenses.guarantee import Exposure, Guarantee
from glasshouse.federation.defenses.per_example import prepare_model
from glasshouse.interfaces import Trainer, losses_of
from glasshouse.limits import Count, Fix, Positive, Probability, check_ranges
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.wire import Batch, Mechanism, Trained

try:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer
except ImportError as error:
    raise not_installed("defense 'dp_sgd'", "opacus", error, extra="dp") from error


@final
@dataclass(frozen=True, kw_only=True)
class DpSgd(NamedDefense):
    """Differentially private local training, for one gradient (fedsgd) or local epochs (fedavg).

    Args:
        clip: L2 bound of one example's gradient over all trained tensors; > 0.
        delta: of the guarantee, in (0, 1).
        noise_multiplier: standard deviation of the noise on the *sum* of clipped gradients ÷ ``clip``; > 0.
        epsilon: alternative: the noise then follows from the client's data, its steps and ``rounds``.
        rounds: rounds that ``epsilon`` must cover, >= 1.
    """

    card: ClassVar[Card] = Card(
        summary="limits each example's share and adds noise in every training step (DP-SGD), with a proof",
        source="Abadi et al. 2016, arXiv:1607.00133",
        extra="dp",
        details={"neighbours": "one example more or less"},
    )
    name: ClassVar[str] = "dp_sgd"
    place: ClassVar[Literal["local"]] = "local"

    clip: Annotated[Positive, Fix("try 1")]
    delta: Annotated[Probability, Fix("try 1e-5")] = 1e-5
    noise_multiplier: float | None = None
    epsilon: float | None = None
    rounds: Count = 1

    def __post_init__(self) -> None:
        check_ranges(self, "defense 'dp_sgd'")
        levels = [value for value in (self.noise_multiplier, self.epsilon) if value is not None]
        if len(levels) != 1 or not 0 < levels[0] < 1e6:
            raise BadValue(
                "defense 'dp_sgd'",
                needs="either noise_multiplier or epsilon, in (0, 1e6)",
                got=f"noise_multiplier = {self.noise_multiplier}, epsilon = {self.epsilon}",
                fix="try noise_multiplier = 1",
            )

    def noise(self, *, batch_rate: float, steps: int) -> float:
        """The noise multiplier for ``steps`` steps a round, each on ``batch_rate`` of the client's data."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        assert self.epsilon is not None
        return needed_noise(
            self.epsilon, delta=self.delta, rate=batch_rate, steps=steps * self.rounds, neighbours="example"
        )

    def describe(self) -> Mechanism:
        note = "neighbouring: one example more or less; Poisson-sampled steps"
        return describe_mechanism(self, note=note)

    def local(self, train: Trainer) -> Trainer:
        """The private version of the honest trainer.

        Raises:
            Inapplicable: ``train`` is already wrapped, so its per-example computation is unknown.
        """
        if not isinstance(train, LocalTraining):
            raise Inapplicable(
                "defense 'dp_sgd'",
                needs="the federation's own trainer",
                got=f"one wrapped as {type(train).__name__}",
                fix="list dp_sgd before other defenses that act in local training",
            )
        return PrivateTraining(inner=train, defense=self)

    def spent(self, exposure: Exposure) -> Guarantee:
        """The budget over ``exposure``. Every round counts, as if the client took part in all of them."""
        stated: dict[str, Any] = {
            "noise_multiplier": self.noise(batch_rate=exposure.batch_rate, steps=exposure.steps),
            "delta": self.delta,
            "neighbours": "example",
            "steps": exposure.steps * exposure.rounds,
            "rate": exposure.batch_rate,
        }
        return Guarantee(epsilon=spent_epsilon(**stated), defense=self.name, clip=self.clip, **stated)


@final
@dataclass(frozen=True, kw_only=True)
class PrivateTraining:
    """``inner``, with every step clipped per example and noised.

    Attributes:
        inner: the honest trainer, whose settings are used, except for its batches.
        defense: clip and noise.
        canaries: indices of update entries, (k,), each the gradient of an additional example; for audits.
    """

    inner: LocalTraining
    defense: DpSgd
    canaries: Tensor | None = None

    def exposure(self, examples: int, *, rounds: int = 1) -> Exposure:
        """How often a client with this many examples is used, for its guarantee."""
        size = min(self.inner.batch_size, examples)
        steps = 1 if self.inner.kind == "gradient" else self.inner.epochs * math.ceil(examples / size)
        return Exposure(rounds=rounds, steps=steps, batch_rate=size / examples)

    def __call__(self, model: nn.Module, data: Batch, *, rng: Rng, ascend: bool = False) -> Trained:
        """Train privately; as for the honest trainer, parameters change unless a gradient is sent.

        Raises:
            BadValue: no data, or fewer than one batch for a gradient.
            Inapplicable: the model mixes the examples of a batch, so that no example has its own gradient.
        """
        self.inner.check_enough(data, subject="private local training")
        exposure = self.exposure(len(data))
        work = prepare_model(model, trained=self.inner.parameters(model).keys(), dropout=self.inner.dropout)
        parameters = {name: p for name, p in work.named_parameters() if p.requires_grad}
        before = {name: p.detach().clone() for name, p in parameters.items()}
        optimizer = DPOptimizer(
            self.inner.stepper(parameters.values()),
            noise_multiplier=self.defense.noise(batch_rate=exposure.batch_rate, steps=exposure.steps),
            max_grad_norm=self.defense.clip,
            expected_batch_size=min(self.inner.batch_size, len(data)),
            generator=rng.child("noise").torch(data.inputs.device),
        )
        hooked = GradSampleModule(work, loss_reduction="sum")
        order = poisson(len(data), exposure.batch_rate, exposure.steps, rng=rng.child("order"))
        places, drawn = self.canaries, rng.child("canaries")  # drawn like examples
        canaries = () if places is None else poisson(len(places), exposure.batch_rate, len(order), rng=drawn)
        with torch.random.fork_rng(devices=[], enabled=self.inner.dropout):
            if self.inner.dropout:
                torch.manual_seed(rng.child("dropout").seed())
            for step, rows in enumerate(order):
                optimizer.zero_grad()
                _per_example_gradients(hooked, parameters, data.pick(rows), sign=-1.0 if ascend else 1.0)
                if places is not None:
                    _append_canaries(parameters, places[canaries[step]], size=self.defense.clip)
                if self.inner.kind == "gradient":
                    optimizer.pre_step()
                else:
                    optimizer.param_groups[0]["lr"] = self.inner.rate(step)
                    optimizer.step()
        return Trained(
            tensors=self._sent(model, parameters, before), kind=self.inner.kind, steps=len(order), order=order
        )

    def _sent(
        self, model: nn.Module, parameters: Mapping[str, nn.Parameter], before: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        if self.inner.kind == "gradient":
            return {name: p.grad.detach() for name, p in parameters.items() if p.grad is not None}
        with torch.no_grad():
            for name, p in self.inner.parameters(model).items():
                p.copy_(parameters[name])
        return self.inner.changed(parameters, before)


def _append_canaries(parameters: Mapping[str, nn.Parameter], places: Tensor, *, size: float) -> None:
    """Append rows to ``grad_sample``, each ``size`` at one of ``places`` (indices over all parameters)."""
    start = 0
    for p in parameters.values():
        rows = p.new_zeros((len(places), p.numel()))
        rows_here = ((places >= start) & (places < start + p.numel())).nonzero().flatten()
        rows[rows_here, places[rows_here] - start] = size
        own = p.grad_sample  # type: ignore[attr-defined]  # Opacus's attribute
        p.grad_sample = torch.cat([own, rows.view(-1, *p.shape)])  # type: ignore[attr-defined]
        start += p.numel()


def poisson(examples: int, rate: float, steps: int, *, rng: Rng) -> tuple[Tensor, ...]:
    """The rows used in each step: every example independently with probability ``rate``."""
    draws = torch.rand(steps, examples, generator=rng.torch())
    return tuple((row < rate).nonzero().flatten() for row in draws)


def _per_example_gradients(
    hooked: GradSampleModule, parameters: Mapping[str, nn.Parameter], batch: Batch, *, sign: float
) -> None:
    """Fill ``grad_sample`` (B, *shape) of every parameter; for an empty batch only noise is sent."""
    if len(batch) == 0:
        for p in parameters.values():
            p.grad_sample = p.new_zeros((0, *p.shape))  # type: ignore[attr-defined]  # Opacus's attribute
        return
    inputs = batch.inputs.clone()
    if inputs.is_floating_point():
        inputs.requires_grad_(True)  # backward hooks need an input that requires a gradient
    work: nn.Module = hooked._module  # the hooks are on its layers
    step = Batch(inputs=inputs, labels=batch.labels)
    with warnings.catch_warnings():  # tokens have no gradient, and the hooks do not need it
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        torch.autograd.backward(sign * losses_of(work, step).sum())
