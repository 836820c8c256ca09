"""The optimisers by name; those that need a package of their own are looked up when they are chosen."""

import logging
import pickle
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final

from glasshouse.attacks.inversion.ggl.objective import Fit
from glasshouse.attacks.inversion.ggl.search import Best, Budget, adam, normal_starts
from glasshouse.process import each
from glasshouse.rng import Rng

LOG = logging.getLogger("glasshouse")

OptimizerName = Literal["adam", "cma_es", "turbo"]

_HOME = "glasshouse.attacks.inversion.ggl"


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Trial:
    """One search of CMA-ES or TuRBO, as data that another process can be handed.

    Attributes:
        fit: see :func:`minimize`.
        name: see :func:`minimize`.
        budget: see :func:`minimize`.
        further: settings of the optimiser.
        rng: of this trial.
    """

    fit: Fit
    name: OptimizerName
    budget: Budget
    further: Mapping[str, int]
    rng: Rng


def minimize(
    fit: Fit,
    name: OptimizerName,
    budget: Budget,
    *,
    trials: int,
    how: Mapping[str, float | int | bool],
    rng: Rng,
    processes: int = 1,
) -> Best:
    """The best of ``trials`` independent searches, by their own loss.

    Args:
        fit: what to minimise.
        name: ``adam`` runs all trials in one batch, whose rounding is not that of single runs.
        budget: of one trial.
        trials: searches; each has its own stream of randomness, whichever process it runs in.
        how: ``learning_rate`` and ``signed`` of Adam, ``population`` of CMA-ES.
        rng: of starts and samples.
        processes: trials of CMA-ES or TuRBO at a time, each in a process of its own; the result is the same.
            One where ``fit`` cannot be handed to another process: on a GPU, or a generator of a local class.

    Raises:
        NotInstalled: the optimiser's package is missing.
    """
    streams = [rng.child(f"trial/{i}") for i in range(trials)]
    if name == "adam":
        starts = normal_starts(streams, fit.dimension)
        rate, signed = float(how["learning_rate"]), bool(how["signed"])
        items = list(adam(fit, starts, budget, learning_rate=rate, signed=signed))
        return min(items, key=lambda best: best.loss)
    further = {"population": int(how["population"])} if name == "cma_es" else {}
    every = [_Trial(fit=fit, name=name, budget=budget, further=further, rng=stream) for stream in streams]
    if min(processes, trials) > 1 and _can_travel(fit):
        items = each(_best_of_search, every, processes=processes, label="trials in the latent space")
    else:
        items = [_best_of_search(trial) for trial in every]
    return min(items, key=lambda best: best.loss)


def _can_travel(fit: Fit) -> bool:
    if fit.labels.device.type != "cpu":
        return False
    try:
        pickle.dumps(fit)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        LOG.warning("trials run one after the other, they cannot be handed to other processes: %s", error)
        return False
    return True


def _best_of_search(trial: _Trial) -> Best:
    search = pkgutil.resolve_name(f"{_HOME}.{trial.name}:minimize")
    trials: Best = search(trial.fit, trial.fit.dimension, trial.budget, rng=trial.rng, **trial.further)
    return trials
