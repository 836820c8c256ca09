"""What the noise of FLARE's filters buys, from their own arithmetic."""

import math
from dataclasses import dataclass
from typing import final

from glasshouse.errors import BadValue


@final
@dataclass(frozen=True, kw_only=True)
class SparseVectorBudget:
    """What one call of ``SVTPrivacy`` spends, as its own accountant adds it up (pure ε, neighbours: update).

    Attributes:
        threshold: ε of the noise on the threshold.
        query: ε of the noise on the comparisons.
        release: ε of the noise on the values that are sent.
        scale: of the Laplace noise on a sent value, in units of the update per local step.
        uploads: number of values sent, at most.
    """

    threshold: float
    query: float
    release: float
    scale: float
    uploads: int

    @property
    def total(self) -> float:
        """ε of one call."""
        return self.threshold + self.query + self.release

    @property
    def per_value(self) -> float:
        """ε of the release of one sent value."""
        return self.release / self.uploads


def sparse_vector_budget(
    numbers: int,
    *,
    fraction: float = 0.1,
    epsilon: float = 0.1,
    noise_var: float = 0.1,
    gamma: float = 1e-5,
    epsilon_release: float | None = None,
) -> SparseVectorBudget:
    """What ``SVTPrivacy`` with these settings spends in a round on a model of ``numbers`` parameters.

    ``epsilon`` sets the selection alone. The release of c values with Laplace noise of scale
    2·gamma/noise_var costs c·noise_var on top of it, unless ``epsilon_release`` is given.

    Raises:
        BadValue: a setting is not above 0.

    Source:
        NVIDIA FLARE 2.9.0, ``SVTPrivacy``; threshold : query = 1 : (2c)^(2/3) as in Lyu, Su & Li 2017,
        arXiv:1603.01699, section 4.2.

    Examples:
        >>> round(sparse_vector_budget(7_033_290).total)
        70333
    """
    settings = {"numbers": numbers, "fraction": fraction, "epsilon": epsilon, "noise_var": noise_var}
    if bad := [name for name, value in (settings | {"gamma": gamma}).items() if not 0 < value < math.inf]:
        raise BadValue(
            "SVTPrivacy", needs="settings above 0", got=", ".join(bad), fix="correct the configuration"
        )
    uploads = min(math.ceil(numbers * fraction), numbers)
    threshold = epsilon / (1 + (2.0 * uploads) ** (2 / 3))
    release = uploads * noise_var if epsilon_release is None else epsilon_release
    return SparseVectorBudget(
        threshold=threshold,
        query=epsilon - threshold,
        release=release,
        scale=2 * gamma * uploads / release,
        uploads=uploads,
    )
