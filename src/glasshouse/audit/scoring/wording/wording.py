"""Words of a finding: how it was chosen, which grants were given, which defences were active."""

from glasshouse.audit.attacking.needs import declared
from glasshouse.scenario.axes import label_of
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Plugin


def chosen_words(attack: Plugin) -> str:
    """How the number was chosen, in words."""
    _, budget = declared(attack)
    restarts = 1 if budget is None else budget.restarts
    return (
        f"best of {restarts} restarts, chosen by the attack's own loss"
        if restarts > 1
        else "a single run; nothing was selected afterwards"
    )


def given_words(scenario: Scenario, attack: Plugin) -> tuple[str, ...]:
    """The grants of the scenario that this attack uses."""
    needs, _ = declared(attack)
    grants = [name for name, value in scenario.grants.model_dump().items() if value]
    derived = (
        {"cohorts"}
        if scenario.threat.role != "server" and "aggregate" in needs.sees | needs.any_of
        else set()
    )
    return tuple(name for name in grants if name in needs.grants | needs.uses | derived)


def defense_labels(scenario: Scenario) -> tuple[str, ...]:
    """The defences in words, in order."""
    return tuple(d.label or str(label_of({"name": d.name, **d.arguments})) for d in scenario.defenses)
