"""Planted leaks: would this attack, with these settings, have found a leak in this very cell?

The cell's federation is simulated once more with other private data and without its defences: same model,
data, protocol, terms and threat. Its clients are canaries, whose updates are sent undefended; the share of
them that the attack finds is the power behind its silence about the cell itself. A cell without defences is
its own planted leak.
"""

from typing import Final

from glasshouse.scenario.spec import Policy, Scenario
from glasshouse.scenario.table import Epsilon

__all__ = ["HOW", "OTHER_DATA", "OWN", "is_undefended", "planted_scenario", "undefended"]

OTHER_DATA: Final = 7919
"""Added to a seed where other private data are wanted: far from the seeds that an audit repeats with."""
HOW: Final = "clients of this cell with other private data, whose updates were sent undefended"
OWN: Final = "the cell's own clients, whose updates are sent undefended"


def is_undefended(scenario: Scenario) -> bool:
    """Whether nothing of what clients send is changed by a defence."""
    return not scenario.defenses


def undefended(scenario: Scenario) -> Scenario:
    """The scenario without its defences, and all else the same."""
    return scenario.model_copy(update={"defenses": ()})


def planted_scenario(scenario: Scenario) -> Scenario | None:
    """The scenario of a cell's canaries; None: none are wanted, or the federation is no simulation.

    Args:
        scenario: of a cell, without axes.
    """
    wanted = scenario.audit.planted
    if not wanted or not scenario.audit.controls or scenario.captured:
        return None
    audit = scenario.audit.model_copy(
        update={
            "victims": min(wanted, scenario.audit.victims),
            "seeds": (),
            "blocks": 1,
            "utility": False,
            "contrast": "",
            "epsilon": Epsilon(),
        }
    )
    seed = scenario.draws[0].seed + OTHER_DATA
    return undefended(scenario).model_copy(update={"audit": audit, "policy": Policy(), "seed": seed})
