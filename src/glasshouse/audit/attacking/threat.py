"""The threat model of a scenario, as attacks and views understand it."""

from glasshouse.scenario.spec import Scenario
from glasshouse.transcript.threat import Threat


def threat_of(scenario: Scenario) -> Threat:
    """The scenario's threat model, with what its role sees filled in."""
    return Threat(
        role=scenario.threat.role,
        sees=scenario.sees,
        changes=frozenset(scenario.threat.changes),
        client=scenario.threat.client,
    )
