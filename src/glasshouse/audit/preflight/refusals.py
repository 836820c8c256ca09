"""Find attacks that a setting rules out: by unmet needs, or because they do not support the model."""

import json
from functools import lru_cache

import torch

from glasshouse.attacks.base import ModelBound
from glasshouse.audit.attacking.needs import attack_of, foresee_refusal, refusal_of
from glasshouse.audit.preflight.data import survey_data
from glasshouse.audit.preflight.network import Network, agreed_network, fault_of, without_memory
from glasshouse.data.survey import Survey
from glasshouse.errors import Inapplicable, Problem
from glasshouse.scenario.axes import cells
from glasshouse.scenario.spec import Scenario
from glasshouse.scenario.table import Plugin
from glasshouse.wire import Refusal


def refusal_in(scenario: Scenario, attack: Plugin, survey: Survey | None) -> Refusal | None:
    """Why a scenario without axes rules ``attack`` out; None: no reason is known."""
    if (unmet := foresee_refusal(scenario, attack)) is not None:
        return unmet
    if survey is None:
        return None
    return _on_model(
        attack.name, json.dumps(attack.arguments, sort_keys=True), agreed_network(scenario, survey)
    )


def refused_altogether(scenario: Scenario) -> Problem | None:
    """A problem if no attack can run in any cell; if only some cells rule attacks out, that is a result."""
    first: Refusal | None = None
    for cell in cells(scenario):
        survey = survey_data(cell.scenario)[0]
        for attack in cell.scenario.attacks:
            refusal = refusal_in(cell.scenario, attack, survey)
            if refusal is None:
                return None
            first = first or refusal
    if first is None:
        return None
    needs = f"an attack that can run; {first.subject} needs {first.needs}"
    return Problem(path="attacks", needs=needs, got=first.got, hint=first.fix)


@lru_cache(maxsize=256)
def _on_model(name: str, arguments: str, network: Network) -> Refusal | None:
    attack = attack_of(name, json.loads(arguments))
    if not isinstance(attack, ModelBound) or fault_of(network) is not None:
        return None
    try:
        with without_memory(network), torch.no_grad():
            attack.check_model(network.architecture)
    except Inapplicable as error:
        return refusal_of(error)
    except NotImplementedError:
        pass  # its computation depends on values, which the meta device lacks
    return None
