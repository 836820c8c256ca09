"""Search of the head's training settings by a tree-structured Parzen estimator. Needs the ``tuning`` extra.

Source: Bergstra, Yamins & Cox 2013 (TPE); Dabholkar et al. 2025 (Maui), section 6.3, who use hyperopt. Where
we differ: optuna's sampler; the leakage is maximised on held-out auxiliary features, not on private data.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from glasshouse.attacks.transfer.maui.head import HeadSettings, craft_head
from glasshouse.attacks.transfer.maui.leakage import Sample
from glasshouse.cache import Checkpoint, load_or_make
from glasshouse.errors import BadValue, not_installed
from glasshouse.rng import Rng

NAMES = ("rate", "beta1", "beta2", "noise")
_VERSION = 1


def search_recipe(
    sample: Sample, *, units: int, classes: int, behind: int, settings: HeadSettings, trials: int, rng: Rng
) -> HeadSettings:
    """The settings, of ``trials``, whose head leaks most on held-out features; the given ones come first.

    Ranges: a factor of 10 either way around ``settings`` for ``rate`` and ``noise``, of 4 for the two
    weights. A setting of 0 is switched off, and stays 0.

    Raises:
        NotInstalled: optuna is missing.
        BadValue: the mode does not train the head, so there is nothing to search.
    """
    subject = "search of attack 'maui' (trials > 0)"
    if "trained" not in settings.mode:
        raise BadValue(
            subject,
            needs="a mode that trains the head: trained, trained+quantile",
            got=f"{settings.mode}, which uses none of {', '.join(NAMES)}",
            fix='set trials = 0, or mode = "trained+quantile"',
        )
    try:
        import optuna  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise not_installed(
            subject, "optuna", str(error), extra="tuning", instead="set trials = 0"
        ) from error
    base = {name: float(getattr(settings, name)) for name in NAMES if getattr(settings, name)}

    def make(_: Checkpoint) -> dict[str, Tensor]:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            direction="maximize", sampler=optuna.samplers.TPESampler(seed=rng.child("tpe").seed() % 2**32)
        )
        study.enqueue_trial(base)

        # The head's leakage on held-out features decides: the victims are not seen.
        def leak(trial: Any) -> float:
            reach = {name: 4.0 if name.startswith("beta") else 10.0 for name in base}
            ranges = {name: (value / reach[name], value * reach[name]) for name, value in base.items()}
            chosen = {name: trial.suggest_float(name, *ends, log=True) for name, ends in ranges.items()}
            sizes = {"units": units, "classes": classes, "behind": behind}
            head = craft_head(sample, **sizes, settings=replace(settings, **chosen), rng=rng)
            return float(head.leakage[-1])

        study.optimize(leak, n_trials=trials)
        return {"best": torch.tensor([study.best_params[n] for n in base], dtype=torch.float64)}

    # A search is kept under everything that it depends on.
    key = {
        "version": _VERSION,
        "features": sample.features,
        "labels": sample.labels,
        "settings": {k: list(v) if isinstance(v, tuple) else v for k, v in vars(settings).items()},
        "sizes": [units, behind],
        "trials": trials,
        "rng": rng.seed(),
    }
    best_values = load_or_make("maui-tuning", key, make)["best"].tolist()
    return replace(settings, **dict(zip(base, best_values, strict=True)))
