"""What a scenario asks for before round 0: scoring context of metrics, images of each role, training."""

from glasshouse import registry
from glasshouse.interfaces import traits_of
from glasshouse.scenario.spec import Scenario

HEAD_IMAGES = 10_000
"""Largest number of public images that a new head is fitted to."""


def metrics_requiring(scenario: Scenario, requirement: str) -> tuple[str, ...]:
    """Names of the scenario's metrics that require ``requirement`` in their context.

    Unknown names are left out: another rule reports them.
    """
    names = registry.names("metrics")
    return tuple(
        m.name
        for m in scenario.audit.metrics
        if m.name in names and requirement in registry.load("metrics", m.name).requires  # type: ignore[attr-defined]  # a metric's class
    )


def distractors(scenario: Scenario) -> int:
    """Number of distractors (other images from the private distribution) that the metrics need."""
    return scenario.audit.distractors if metrics_requiring(scenario, "distractors") else 0


def role_requests(scenario: Scenario) -> dict[str, tuple[int, str, tuple[int, ...]]]:
    """(number of images, split, classes) requested by each role; roles without images are left out."""
    data = scenario.data
    private = 0 if scenario.captured else scenario.federation.clients * data.examples
    requests = {
        "private": (private, data.private_split, data.private_classes),
        "auxiliary": (data.auxiliary, data.auxiliary_split, data.auxiliary_classes),
        "heldout": (max(data.heldout, distractors(scenario)), data.heldout_split, data.heldout_classes),
        "public": (data.public, data.public_split, data.public_classes),
    }
    return {role: request for role, request in requests.items() if request[0]}


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
