"""Cost of the training that a scenario requests before round 0."""

from glasshouse.interfaces import traits_of
from glasshouse.scenario.spec import Scenario

HEAD_IMAGES = 10_000
"""Largest number of public images that a new head is fitted to."""


def passes(scenario: Scenario) -> int:
    """Training cost before round 0: images times forward and backward passes.

    Fitting a head costs one forward pass over its training images.
    """
    how, weights, public = scenario.model.pretraining, scenario.model.weights, scenario.data.public
    if not (weights or how.epochs):
        return 0
    against = how.adversarial
    ascent = {"none": 0, "fgsm": 1}.get(against.method, against.steps)
    train = 0 if weights else how.epochs * public * (1 + ascent)
    features = traits_of(scenario.federation.protocol).start == "features"
    fits_head = features and how.head_epochs and (weights or how.behind == "linear")
    return train + (min(HEAD_IMAGES, public) if fits_head else 0)
