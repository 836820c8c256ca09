"""The optimizers by name; those that need an extra package are imported only when chosen."""

import logging
import pickle
import pkgutil
from collections.abc import Sequence
from functools import partial

from glasshouse.attacks.inversion.ggl.objective import Fit
from glasshouse.attacks.inversion.ggl.search import Best, LatentSearch, adam, normal_starts
from glasshouse.process import each
from glasshouse.rng import Rng

LOG = logging.getLogger("glasshouse")


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
    trial = partial(_run_trial, fit, search)
    if min(search.processes, search.restarts) > 1 and _can_travel(fit):
        results = each(trial, streams, processes=search.processes, label="trials in the latent space")
    else:
        results = [trial(stream) for stream in streams]
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


def _run_trial(fit: Fit, search: LatentSearch, rng: Rng) -> Best:
    """One search of CMA-ES or TuRBO, maybe in another process."""
    minimize_one = pkgutil.resolve_name(f"glasshouse.attacks.inversion.ggl.{search.optimizer}:minimize")
    best: Best = minimize_one(fit, fit.dimension, search, rng=rng)
    return best
