"""The optimizers by name; those that need an extra package are imported only when chosen."""

import logging
import pickle
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from glasshouse.attacks.inversion.ggl.objective import Fit
from glasshouse.attacks.inversion.ggl.search import Best, LatentSearch, adam, normal_starts
from glasshouse.process import each
from glasshouse.rng import Rng

LOG = logging.getLogger("glasshouse")

_HOME = "glasshouse.attacks.inversion.ggl"


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Trial:
    """One search of CMA-ES or TuRBO, as data that can be sent to another process.

    Attributes:
        fit: see :func:`minimize`.
        search: see :func:`minimize`.
        rng: of this trial.
    """

    fit: Fit
    search: LatentSearch
    rng: Rng


def minimize(fit: Fit, search: LatentSearch, *, rngs: Sequence[Rng]) -> list[tuple[Best, ...]]:
    """For every victim ``search.restarts`` independent trials, the one with the lowest loss first.

    Each trial has its own random stream, whichever process it runs in. A single process is used if ``fit``
    cannot be sent to another: on a GPU, or with a generator of a local class. Adam runs all trials of all
    victims in one batch, with other rounding than single runs; the other optimizers take one victim.

    Args:
        fit: the loss.
        search: the settings.
        rngs: a stream for every victim.

    Raises:
        NotInstalled: the optimizer's package is missing.
    """
    streams = [rng.child(f"trial/{i}") for rng in rngs for i in range(search.restarts)]
    if search.optimizer == "adam":
        starts = normal_starts(streams, fit.dimension).to(fit.labels.device)
        optimum = adam(fit, starts, search, victims=len(rngs))
        return [_sorted(optimum[i : i + search.restarts]) for i in range(0, len(optimum), search.restarts)]
    assert len(rngs) == 1  # the others evaluate whole populations of one victim
    trials = [_Trial(fit=fit, search=search, rng=stream) for stream in streams]
    if min(search.processes, search.restarts) > 1 and _can_travel(fit):
        results = each(_run_trial, trials, processes=search.processes, label="trials in the latent space")
    else:
        results = [_run_trial(trial) for trial in trials]
    return [_sorted(results)]


def _sorted(trials: Sequence[Best]) -> tuple[Best, ...]:
    return tuple(sorted(trials, key=lambda trial: trial.loss))


def _can_travel(fit: Fit) -> bool:
    if fit.labels.device.type != "cpu":
        return False
    try:
        pickle.dumps(fit)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        LOG.warning("trials run one after the other, they cannot be handed to other processes: %s", error)
        return False
    return True


def _run_trial(trial: _Trial) -> Best:
    minimize_one = pkgutil.resolve_name(f"{_HOME}.{trial.search.optimizer}:minimize")
    best: Best = minimize_one(trial.fit, trial.fit.dimension, trial.search, rng=trial.rng)
    return best
