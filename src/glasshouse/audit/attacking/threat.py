"""The threat model of a scenario in the form that attacks and views use."""

from glasshouse.scenario.spec import Scenario
from glasshouse.transcript.threat import Threat


def threat_of(scenario: Scenario) -> Threat:
    """The scenario's threat model, completed with what its role sees."""
    return Threat(
        role=scenario.threat.role,
        sees=scenario.sees,
        changes=frozenset(scenario.threat.changes),
        client=scenario.threat.client,
    )
