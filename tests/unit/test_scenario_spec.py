"""The spec says the same as the packages it describes, though it may not import them."""

from dataclasses import fields
from typing import get_args

import pytest

from glasshouse.audit.simulation.pretraining import OURS
from glasshouse.models.fit import Recipe
from glasshouse.scenario.network import Pretraining
from glasshouse.scenario.spec import Federation, Grants, Scenario, Threat
from glasshouse.scenario.table import Message
from glasshouse.transcript import grants, threat


def test_literals_are_those_of_the_threat():
    assert set(get_args(Message)) == set(get_args(threat.Sees))
    assert set(get_args(get_args(Threat.model_fields["changes"].annotation)[0])) == set(
        get_args(threat.Changes)
    )
    assert set(get_args(Threat.model_fields["role"].annotation)) == set(get_args(threat.Role))


def test_grants_have_the_names_of_the_transcript():
    assert set(Grants.model_fields) == set(grants.NAMES)


def test_pretraining_is_a_recipe_with_the_same_defaults():
    theirs = {f.name: f.default for f in fields(Recipe) if f.name != "epochs"}
    assert Pretraining().model_dump(exclude=OURS) == {"epochs": 0, **theirs}
    assert Recipe(**Pretraining(epochs=2, flip=True).model_dump(exclude=OURS)).flip


@pytest.mark.parametrize(("secure", "kind"), [(True, "aggregate"), (False, "update")])
def test_a_server_sees_what_there_is_to_see(secure, kind):

    assert Scenario(name="a", federation=Federation(secure_sum=secure)).sees == {"broadcast", "own", kind}
    assert Scenario(name="a", threat=Threat(role="bystander")).sees == {"broadcast"}


@pytest.mark.parametrize(
    ("clients", "cohort", "size"), [(10, 0.25, 3), (50, 0.2, 10), (3, 1.0, 3), (10, 0.04, 0)]
)
def test_the_cohort_is_the_nearest_whole_number(clients, cohort, size):

    assert Federation(clients=clients, cohort=cohort).cohort_size == size
