"""The tables of a scenario that say which network is trained, and how it was trained before."""

from typing import Literal, final

from glasshouse.scenario.table import Name, Plugin
from glasshouse.settings import Count, Natural, Positive, Recipe, Table


@final
class Adversarial(Table):
    """``[model.pretraining.adversarial]``: train on images moved against the model (``models.adversarial``).

    Attributes:
        method: ``none`` trains on the images as they are; ``fgsm``: one step from a random start; ``pgd``:
            several.
        radius: largest change of a pixel, in 255ths of the image range.
        step: of each step, as a share of the radius; None: 1.25 for fgsm, 0.5 for pgd.
        steps: of pgd.
    """

    method: Literal["none", "fgsm", "pgd"] = "none"
    radius: Positive = 4.0
    step: Positive | None = None
    steps: Count = 10


@final
class Pretraining(Recipe):
    """``[model.pretraining]``: training on the public part before round 0, as :class:`Recipe` says it.

    Attributes:
        epochs: passes over the public part; 0: none.
        adversarial: see :class:`Adversarial`.
        behind: under protocol transfer, what follows the features in their training: the agreed ``head``,
            or one ``linear`` layer that is thrown away.
        head_epochs: under transfer, passes that then fit the agreed head (``linear``, or ``weights`` given).
    """

    epochs: Natural = 0
    adversarial: Adversarial = Adversarial()
    behind: Literal["head", "linear"] = "head"
    head_epochs: Natural = 0


@final
class Model(Plugin):
    """``[model]``: the agreed architecture; further keys are arguments of its factory.

    Attributes:
        weights: safetensors file to start from (transfer: with or without a head); None: fresh, by the seed.
        pretraining: what the server does before round 0.
    """

    name: Name = "convnet"
    weights: str | None = None
    pretraining: Pretraining = Pretraining()
