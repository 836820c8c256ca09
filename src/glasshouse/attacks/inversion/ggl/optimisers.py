"""The optimisers by name; those that need a package of their own are looked up when they are chosen."""

import pkgutil
from collections.abc import Mapping
from typing import Literal

from glasshouse.attacks.inversion.ggl.objective import Fit
from glasshouse.attacks.inversion.ggl.search import Best, Budget, adam, normal_starts
from glasshouse.rng import Rng

Optimiser = Literal["adam", "cma_es", "turbo"]

_HOME = "glasshouse.attacks.inversion.ggl"


def minimise(
    fit: Fit,
    name: Optimiser,
    budget: Budget,
    *,
    trials: int,
    how: Mapping[str, float | int | bool],
    rng: Rng,
) -> Best:
    """The best of ``trials`` independent searches, by their own loss.

    Args:
        fit: what to minimise.
        name: ``adam`` runs all trials in one batch, the others one after the other.
        budget: of one trial.
        trials: searches.
        how: ``learning_rate`` and ``signed`` of Adam, ``population`` of CMA-ES.
        rng: of starts and samples.

    Raises:
        NotInstalled: the optimiser's package is missing.
    """
    if name == "adam":
        starts = normal_starts(trials, fit.dimension, rng=rng)
        found = adam(
            fit, starts, budget, learning_rate=float(how["learning_rate"]), signed=bool(how["signed"])
        )
        return min(found, key=lambda best: best.loss)
    search = pkgutil.resolve_name(f"{_HOME}.{name}:minimise")
    further = {"population": int(how["population"])} if name == "cma_es" else {}
    every: list[Best] = [
        search(fit, fit.dimension, budget, rng=rng.child(f"trial/{i}"), **further) for i in range(trials)
    ]
    return min(every, key=lambda best: best.loss)
