"""What the metrics of a scenario need beside claims and truth, asked of the metrics themselves."""

from glasshouse import registry
from glasshouse.scenario.spec import Scenario


def metrics_requiring(scenario: Scenario, requirement: str) -> tuple[str, ...]:
    """Names of the scenario's metrics that need ``requirement`` of their context.

    Names that no metric has are left out: another rule reports them.
    """
    known = registry.names("metrics")
    return tuple(
        m.name
        for m in scenario.audit.metrics
        if m.name in known and requirement in registry.load("metrics", m.name).requires  # type: ignore[attr-defined]  # a metric's class
    )
