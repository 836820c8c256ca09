"""The marks that defences leave in updates, as each says itself; a check compares them with updates."""

from dataclasses import dataclass
from typing import Final, final

__all__ = ["GAUSSIAN", "LAPLACE", "Mark", "noise_mark"]

LAPLACE: Final = "laplace"
GAUSSIAN: Final = "gaussian"


@final
@dataclass(frozen=True, kw_only=True)
class Mark:
    """One mark that a declared defence must leave in updates.

    Attributes:
        kind: of the observation that shows it: ``norm``, ``tensor_norm``, ``largest``, ``zeros``,
            ``total_zeros``, ``bits`` or ``noise``.
        setting: name of the defence's argument, or a quantity derived from it.
        value: of the setting; None where the terms do not determine it.
        family: distribution of a noise.
    """

    kind: str
    setting: str
    value: float | None
    family: str = ""


def noise_mark(std: float | None, family: str = GAUSSIAN) -> Mark:
    """Noise of this standard deviation in every entry of the update; None: the terms do not determine it."""
    return Mark(kind="noise", setting="std", value=std, family=family)
