"""Answer without training: receive the model, contribute nothing.

Source: Fraboni et al. 2021, arXiv:2006.11901 (plain free riders return the received model, disguised ones
add noise); Lin et al. 2019, arXiv:1911.12560 (repeating the last change of the global model).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, final

from torch import Tensor, nn

from glasshouse.federation.behaviours.base import NamedBehaviour, settings_of
from glasshouse.federation.client import LocalTraining
from glasshouse.federation.defenses.gaussian_noise import GaussianNoise
from glasshouse.interfaces import Trainer
from glasshouse.limits import Fix, NotNegative
from glasshouse.registry import Card
from glasshouse.rng import Rng
from glasshouse.tensors import scale_tensors
from glasshouse.wire import Batch, Trained


@final
@dataclass(frozen=True, kw_only=True)
class FreeRider(NamedBehaviour):
    """Send no change or the last change of the global model, optionally with noise; no data are used.

    Free riders of one instance share what they received, so each knows the global model of every earlier
    round in which any of them took part. In the first of these rounds the change is zero.

    Args:
        sends: ``zero`` or ``repeat``.
        std: standard deviation of Gaussian noise on every entry, in units of a parameter change; >= 0.
    """

    card: ClassVar[Card] = Card(
        summary="no training: send nothing, noise, or the last global change",
        source="Fraboni et al. 2021, arXiv:2006.11901",
    )
    name: ClassVar[str] = "free_rider"

    sends: Literal["zero", "repeat"] = "zero"
    std: Annotated[NotNegative, Fix("noise alone is sends = zero with std > 0")] = 0.0
    _seen: dict[int, Mapping[str, Tensor]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def deviate(self, train: Trainer, *, round: int, rng: Rng) -> Trainer:
        """The trainer that makes up an update, of the kind and with the steps of ``train``.

        Its result has no order, as no example was used.
        """
        del rng  # noise comes from the stream of the training
        return IdleTrainer(inner=train, rider=self, round=round)

    def change(self, now: Mapping[str, Tensor], *, round: int) -> dict[str, Tensor]:
        """The parameter change to send, before noise; stores ``now`` for later rounds."""
        last = max((r for r in self._seen if r < round), default=None)
        before = now if last is None or self.sends == "zero" else self._seen[last]
        for old in [r for r in self._seen if last is not None and r < last]:
            del self._seen[old]
        self._seen[round] = now
        return {name: t - before[name] for name, t in now.items()}


@final
@dataclass(frozen=True, kw_only=True)
class IdleTrainer:
    """Trains nothing; reports as many steps as ``inner`` would take."""

    inner: Trainer
    rider: FreeRider
    round: int

    def __call__(self, model: nn.Module, data: Batch, *, rng: Rng, ascend: bool = False) -> Trained:
        """Make up an update of the kind that ``inner`` would send."""
        del ascend  # nothing is trained
        settings = settings_of(self.inner, name="free_rider")
        now = {name: p.detach().clone() for name, p in settings.parameters(model).items()}
        change, noise = self.rider.change(now, round=self.round), GaussianNoise(std=self.rider.std)
        change = {name: noise.change(t, rng.child(f"free_rider/{name}")) for name, t in change.items()}
        steps = sum(1 for _ in settings.schedule(len(data), rng=rng))
        return Trained(tensors=_as(settings, now, change), kind=settings.kind, steps=steps, order=())


def _as(
    settings: LocalTraining, now: Mapping[str, Tensor], change: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The update, of the kind in ``settings``, that would cause a change of parameters."""
    if settings.kind == "gradient":
        return scale_tensors(change, -1 / settings.rate())
    if settings.kind == "parameters":
        return {name: now[name] + t for name, t in change.items()}
    return dict(change)
