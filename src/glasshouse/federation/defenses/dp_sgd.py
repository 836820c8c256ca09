"""DP-SGD in local training with Opacus: clip each example's gradient and add noise to every step.

Source: Abadi et al. 2016, arXiv:1607.00133, Algorithm 1; Yousefpour et al. 2021, arXiv:2109.12298 (Opacus).
As in Algorithm 1, each step includes every example with a fixed probability (Poisson sampling), since the
accounting is wrong for shuffled batches (Chua et al. 2024, arXiv:2403.17673): a step may use more or fewer
examples than ``batch_size``, or none. The sum is divided by the expected size.

Neighbouring relation: one example of the client more or less. The number of examples is public.
"""

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal, final

import torch
from torch import Tensor, nn

from glasshouse.errors import Inapplicable, not_installed
from glasshouse.federation.client import LocalTraining
from glasshouse.federation.defenses.accounting import check_level, needed_noise, spent_epsilon
from glasshouse.federation.defenses.base import NamedDefense, describe_mechanism
from glasshouse.federation.defenses.guarantee import Exposure, Guarantee
from glasshouse.federation.defenses.independence import check_independence, same_in_training
from glasshouse.federation.defenses.marks import Mark, noise_mark
from glasshouse.federation.defenses.per_example import own_layers, prepare_model
from glasshouse.interfaces import Trainer, losses_of
from glasshouse.interfaces.modes import FAULTS, seeded
from glasshouse.limits import Count, Fix, Positive, Probability, check_ranges
from glasshouse.registry import Card, create
from glasshouse.rng import Rng
from glasshouse.settings import ORDINARY, PLAIN
from glasshouse.wire import Batch, Mechanism, Terms, Trained, Update, Value

try:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer
except ImportError as error:
    raise not_installed("defense 'dp_sgd'", "opacus", error, extra="dp") from error


_CARRIED_OUT: Final = frozenset(
    {"mode", "frozen", "proximal", "epochs_by_client", "batch_sizes_by_client", "personal", "fixed"}
)
"""Settings of local training that hold under DP-SGD, too; others would be replaced without a word."""
FEW: Final = 4
"""Up to this size of a batch, all smaller ones are tried: steps draw batches of any size."""
RTOL: Final = 1e-4
"""Largest relative difference between two ways to a gradient that rounding in another order explains."""


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

    @classmethod
    def marks(cls, parameters: Mapping[str, Value], update: Update, terms: Terms) -> tuple[Mark, ...]:
        """Noise in every entry; of unknown size under momentum, decay, schedules and other optimizers."""
        batch = min(terms.batch_size, update.examples)
        private: DpSgd = create(cls, parameters)
        multiplier = float(private.noise(batch_rate=batch / update.examples, steps=update.steps))
        per_step = multiplier * float(parameters["clip"]) / batch
        if terms.sends == "gradient":
            return (noise_mark(per_step),)
        if terms.optimizer != PLAIN:
            return (noise_mark(None),)
        return (noise_mark(terms.learning_rate * per_step * math.sqrt(update.steps)),)

    def __post_init__(self) -> None:
        check_ranges(self, "defense 'dp_sgd'")
        check_level("defense 'dp_sgd'", self.noise_multiplier, self.epsilon)

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

    def check_network(self, model: nn.Module, sample: Batch, train: LocalTraining) -> None:
        """Refuse beforehand what :class:`PrivateTraining` would refuse.

        Args:
            model: as the clients receive it.
            sample: examples of any values, one more than a batch has.
            train: the honest trainer.

        Raises:
            Inapplicable: examples influence each other, or a term that DP-SGD does not carry out.
        """
        PrivateTraining(inner=train, defense=self).check(model, sample)

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
        order = poisson(len(data), exposure.batch_rate, exposure.steps, rng=rng.child("order"))
        work = self.check(model, data, sizes=[len(rows) for rows in order])
        parameters = {name: p for name, p in work.named_parameters() if p.requires_grad}
        before = {name: p.detach().clone() for name, p in parameters.items()}
        optimizer = DPOptimizer(
            self.inner.stepper(parameters.values()),
            noise_multiplier=self.defense.noise(batch_rate=exposure.batch_rate, steps=exposure.steps),
            max_grad_norm=self.defense.clip,
            expected_batch_size=min(self.inner.batch_size, len(data)),
            generator=rng.child("noise").torch(data.inputs.device),
        )
        gradients_of = _choose_gradients(work, _sample(data, self.inner.batch_size))
        places, drawn = self.canaries, rng.child("canaries")  # drawn like examples
        canaries = () if places is None else poisson(len(places), exposure.batch_rate, len(order), rng=drawn)
        with seeded(rng.child("dropout").seed()):
            for step, rows in enumerate(order):
                optimizer.zero_grad()
                samples = gradients_of(data.pick(rows), -1.0 if ascend else 1.0)
                for p, each in zip(parameters.values(), samples, strict=True):
                    p.grad_sample = each  # type: ignore[attr-defined]  # Opacus's attribute
                if places is not None:
                    _append_canaries(parameters, places[canaries[step]], size=self.defense.clip)
                if self.inner.kind == "gradient":
                    optimizer.pre_step()
                else:
                    optimizer.param_groups[0]["lr"] = self.inner.rate(step)
                    optimizer.pre_step()
                    # The noisy gradient is released already: what is added now depends on no example.
                    for name, pull in self.inner.pulls(parameters, before).items():
                        parameters[name].grad += pull  # type: ignore[operator]  # set by pre_step
                    optimizer.original_optimizer.step()
        return Trained(
            tensors=self._sent(model, parameters, before), kind=self.inner.kind, steps=len(order), order=order
        )

    @property
    def _draws(self) -> bool:
        """Whether layers are in training mode, in which some draw at random."""
        return self.inner.dropout or self.inner.training.mode == "training"

    def check(self, model: nn.Module, data: Batch, *, sizes: Sequence[int] = ()) -> nn.Module:
        """The copy to train, after showing that each of its examples has a gradient of its own.

        Args:
            model: left as it is.
            data: the client's examples.
            sizes: of the batches that were drawn, beside the usual one.

        Raises:
            Inapplicable: they influence each other, or a term that DP-SGD does not carry out.
        """
        self._check_terms()
        names, usual = self.inner.parameters(model).keys(), self.inner.batch_size
        frozen = self.inner.training.frozen
        work = prepare_model(model, trained=names, dropout=self._draws, frozen=frozen)
        tried, drawn = (2, usual, usual + 1), [*sizes, *range(3, min(usual, FEW) + 1)]
        if len(data) > 1:
            largest = data.pick(torch.arange(min(len(data), max(*tried, *drawn))))
            check_independence(work, largest, subject="defense 'dp_sgd'", sizes=tried, drawn=drawn)
        # Opacus records layers in training mode only; where that changes what they compute, nothing does.
        for name in same_in_training(work, own_layers(work), _sample(data, 1)):
            work.get_submodule(name).training = True
        return work

    def _check_terms(self) -> None:
        """Refuse terms of a step that DP-SGD would not carry out.

        Raises:
            Inapplicable: names them.
        """
        how, plain = self.inner.training.model_dump(), ORDINARY.model_dump()
        if other := [name for name in how if how[name] != plain[name] and name not in _CARRIED_OUT]:
            raise Inapplicable(
                "defense 'dp_sgd'",
                needs="steps whose gradient it computes by itself, of single examples, clipped and noisy",
                got=f"federation.training.{', '.join(other)}",
                fix=f"leave {', '.join(other)} out: dp_sgd has its own clip, batches and mean",
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


Gradients = Callable[[Batch, float], list[Tensor]]
"""(batch, sign) → for every trained parameter the signed gradients of the examples, (B, *shape)."""


def _sample(data: Batch, size: int) -> Batch:
    """One example more than a batch, on which the ways to gradients are compared."""
    return data.pick(torch.arange(min(len(data), size + 1)))


def _choose_gradients(work: nn.Module, sample: Batch) -> Gradients:
    """Per-example gradients that are shown to be those of single examples, on this network and batch size.

    Opacus computes them for a whole batch, for layers that it knows. Where that fails, or differs from the
    gradients of examples alone, each example is differentiated by itself: slower, right by construction.
    """
    apart = partial(_one_by_one, copy.deepcopy(work))  # without the hooks that are about to be attached
    try:
        GradSampleModule(copy.deepcopy(work), loss_reduction="sum", strict=False)
    except FAULTS:  # a layer with buffers beside its parameters, as under spectral norm
        return partial(_one_by_one, work)
    hooked = GradSampleModule(work, loss_reduction="sum", strict=False)
    together = partial(_together, hooked)
    if _agree(together, apart, sample):
        return together
    hooked.to_standard_module()  # takes the hooks off again
    return partial(_one_by_one, work)


def _agree(together: Gradients, apart: Gradients, batch: Batch) -> bool:
    """Whether both ways give the same gradients of every example, up to rounding."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        right = apart(batch, 1.0)
        torch.manual_seed(0)
        try:
            quick = together(batch, 1.0)
        except FAULTS:  # a layer that Opacus does not know, or takes another dimension of for the batch
            return False
    for one, other in zip(quick, right, strict=True):
        if one.shape != other.shape or not torch.allclose(one, other, rtol=RTOL, atol=RTOL * _largest(other)):
            return False
    return True


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _one_by_one(work: nn.Module, batch: Batch, sign: float) -> list[Tensor]:
    """The gradient of every example, each computed alone."""
    parameters = _trained(work)
    rows = []
    for i in range(len(batch)):
        loss = sign * losses_of(work, batch.pick(torch.tensor([i]))).sum()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        rows.append([g.to_dense() if g.is_sparse else g for g in gradients])
    if not rows:
        return [p.new_zeros((0, *p.shape)) for p in parameters]
    return [torch.stack(each) for each in zip(*rows, strict=True)]


def _together(hooked: GradSampleModule, batch: Batch, sign: float) -> list[Tensor]:
    """The gradients of all examples from one pass, by Opacus; for an empty batch only noise is sent."""
    work: nn.Module = hooked._module  # the hooks are on its layers
    parameters: list[Any] = _trained(work)
    for p in parameters:
        p.grad_sample = None
    if len(batch) == 0:
        return [p.new_zeros((0, *p.shape)) for p in parameters]
    inputs = batch.inputs.clone()
    if inputs.is_floating_point():
        inputs.requires_grad_(True)  # backward hooks need an input that requires a gradient
    step = Batch(inputs=inputs, labels=batch.labels)
    with warnings.catch_warnings():
        # Tokens have no gradient, and the hooks do not need it; a loop over examples is what is wanted.
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        warnings.filterwarnings("ignore", message="There is a performance drop")
        torch.autograd.backward(sign * losses_of(work, step).sum())
    missing = [p for p in parameters if not isinstance(p.grad_sample, Tensor)]
    if missing:
        raise ValueError("a weight is used in more than one place, or by a function")
    return [p.grad_sample for p in parameters]


def _trained(work: nn.Module) -> list[nn.Parameter]:
    return [p for p in work.parameters() if p.requires_grad]
