"""Requirements of a scenario's metrics (scoring context) and roles (images of the data set)."""

from glasshouse import registry
from glasshouse.scenario.spec import Scenario


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
    requests = {
        "private": (
            0 if scenario.captured else scenario.federation.clients * data.examples,
            data.private_split,
            data.private_classes,
        ),
        "auxiliary": (data.auxiliary, data.auxiliary_split, data.auxiliary_classes),
        "heldout": (max(data.heldout, distractors(scenario)), data.heldout_split, data.heldout_classes),
        "public": (data.public, data.public_split, data.public_classes),
    }
    return {role: request for role, request in requests.items() if request[0]}
