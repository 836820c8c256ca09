"""Every registered attack keeps the promises of :class:`AttackContract`, on a toy that it accepts."""

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from table_views import of_common_trees, of_gradient, of_members, of_private_trees, of_statistics, of_trees

from glasshouse import registry
from glasshouse.attacks.base import Attack
from glasshouse.data.tables.cohort import TABLE
from glasshouse.testing.attack_contract import ActiveAttackContract, AttackContract
from glasshouse.testing.toys import SHAPE, toy
from glasshouse.tokens.vocabulary import Vocabulary
from glasshouse.transcript.cut import cut
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import View
from glasshouse.wire import Batch

sys.path.append(str(Path(__file__).parents[1] / "unit"))
from linear_attacks import AUXILIARY, attacked


@dataclass(frozen=True)
class Case:
    """Settings that end quickly, and the toy; ``kind``: what the view holds (update, run, crafted round).

    ``view``: in place of the toy, for data that it has not.
    """

    kind: str = "update"
    settings: Mapping[str, Any] = field(default_factory=dict)
    toy: Mapping[str, Any] = field(default_factory=dict)
    challenge: Batch | None = None
    auxiliary: Batch = AUXILIARY
    view: Callable[[], View] | None = None


SUMS = {
    "protocol": "fedavg", "clients": 6, "cohort": 3, "examples": 5, "rounds": 4, "secure_sum": True,
}  # fmt: skip
LOOKS = {"looks_for": "gradient_inversion", "method": {"pairs": 10}, "every": 2}
HEAD = {
    "protocol": "transfer", "model": "maui_cnn", "arguments": {"width": 4, "hidden": 32}, "trained": "head.",
    "examples": 2,
}  # fmt: skip
DRAWS = torch.Generator().manual_seed(0)
PUBLIC = Batch(inputs=torch.rand(20, *SHAPE, generator=DRAWS), labels=torch.arange(20) % 10)
LOGITS = {
    "protocol": "fedmd", "sends": "logits", "public": PUBLIC, "sensitive": 12, "targets": 4, "examples": 4,
    "rounds": 2, "clients": 2, "learning_rate": 1e-2,
}  # fmt: skip
TEXT = {
    "model": "small_gpt", "vocabulary": Vocabulary(size=40, pad=0, end=1), "arguments": {"width": 32},
    "examples": 2,
}  # fmt: skip
ROWS_SENT = {
    "table": TABLE, "arguments": {"capacity": 2**20}, "sends": "document", "examples": 12,
}  # fmt: skip
VERTICAL = ROWS_SENT | {"model": "no_model", "protocol": "vertical", "examples": 24}
KNOWN = Batch(inputs=torch.tensor([[5, 6, 7, 1, 0, 0, 0, 0]]), labels=torch.zeros(1).long())
SENTENCES = Batch(
    inputs=torch.tensor([[5, 6, 7, 1, 0, 0, 0, 0], [8, 6, 9, 7, 1, 0, 0, 0]]), labels=torch.zeros(2).long()
)
CASES: Mapping[str, Case] = {
    "pli": Case(kind="run", settings={"training": {"width": 8, "epochs": 1}}, toy=LOGITS),
    "tbi": Case(kind="run", settings={"training": {"width": 8, "epochs": 1}}, toy=LOGITS),
    "class_inversion": Case(
        kind="run",
        settings={"search": {"iterations": 3}},
        toy={"protocol": "fedavg", "examples": 4, "clients": 2, "targets": 4},
    ),
    "dlg": Case(settings={"search": {"iterations": 2, "restarts": 2}}),
    "idlg": Case(settings={"search": {"iterations": 2, "restarts": 2}}),
    "inverting_gradients": Case(
        settings={"search": {"iterations": 12, "restarts": 2}},
        toy={"protocol": "fedavg", "examples": 3, "batch_size": 1, "learning_rate": 0.3},
    ),
    "gradinversion": Case(settings={"search": {"iterations": 4, "restarts": 2}}),
    "ggl": Case(
        settings={
            "training": {"steps": 3},
            "latent": 4,
            "search": {"evaluations": 20, "population": 10, "optimizer": "adam"},
        }
    ),
    "linear_input": Case(),
    "spear": Case(settings={"search": {"iterations": 6}}, toy={"examples": 3}),
    "label_inference": Case(toy={"examples": 4}),
    "scale_mia": Case(
        kind="crafted", settings={"training": {"steps": 3, "mirror": False}}, toy={"examples": 2}
    ),
    "robbing_the_fed": Case(kind="crafted", settings={"bins": 16}),
    "loki": Case(kind="crafted", settings={"width": 4}),
    "fishing": Case(kind="crafted", toy={"examples": 1}),
    "cah": Case(kind="crafted", toy={"examples": 4}),
    "seer": Case(kind="crafted", settings={"training": {"steps": 3}}, toy={"examples": 2}),
    "maui": Case(
        kind="crafted",
        settings={"head": {"epochs": 2, "batches": 4}, "inversion": {"iterations": 3}},
        toy=HEAD,
    ),
    "nex": Case(settings={"inversion": {"iterations": 3}}, toy=HEAD),
    **{
        name: Case(kind="run", settings=LOOKS, toy=SUMS)
        for name in ("disaggregation", "ols", "reg", "prolin_posterior")
    },
    "dager": Case(toy=TEXT),
    "lamp": Case(
        settings={"search": {"iterations": 4}, "starts": 4, "every": 2, "moves": 3},
        toy=TEXT,
        auxiliary=SENTENCES,
    ),
    "tag": Case(settings={"search": {"iterations": 3, "restarts": 2}}, toy=TEXT, auxiliary=SENTENCES),
    "embedding_rows": Case(toy=TEXT),
    "projres": Case(kind="run", toy=TEXT, challenge=KNOWN),
    "vgia": Case(kind="crafted", toy={"table": TABLE, "arguments": {"hidden": "48,8"}, "examples": 4}),
    "double_span": Case(view=of_gradient),
    "tableak": Case(settings={"members": 2, "iterations": 3}, view=of_gradient),
    "leaf_algebra": Case(view=of_trees),
    "rounded_leaves": Case(settings={"digits": 17}, view=of_trees),
    "noisy_leaves": Case(view=of_private_trees),
    "noisy_membership": Case(view=of_private_trees),
    "cut_values": Case(view=of_trees),
    "cell_membership": Case(view=of_members),
    "joint_cells": Case(view=of_trees),
    "tree_authors": Case(kind="run", view=of_common_trees),
    "histogram_readout": Case(toy=ROWS_SENT | {"model": "boosted_trees", "protocol": "xgb_histogram"}),
    "newton_rows": Case(toy=ROWS_SENT | {"model": "coefficients", "protocol": "newton", "examples": 4}),
    "stated_numbers": Case(toy=ROWS_SENT | {"model": "no_model", "protocol": "statistics"}),
    "follow_up": Case(toy=ROWS_SENT | {"model": "no_model", "protocol": "survival"}),
    "embedding_regression": Case(toy=VERTICAL | {"options": {"known": 6}}),
    "gradient_direction": Case(toy=VERTICAL | {"options": {"known": 6, "reads": "gradients"}}),
    "differencing": Case(view=of_statistics),
    "prolin": Case(kind="run", settings={**LOOKS, "iterations": 20}, toy=SUMS),
}

ACTIVE = sorted(name for name, case in CASES.items() if case.kind == "crafted")


def ours() -> set[str]:
    """Registered attacks of this package: others bring their own tests."""
    return {
        n
        for n in registry.names("attacks")
        if registry.load("attacks", n).__module__.startswith("glasshouse")
    }


def test_every_attack_is_held_to_the_contract():
    assert ours() == set(CASES)


@cache
def made(name: str) -> tuple[Attack, View]:
    """The attack and its view; views are never changed, and a test checks that."""
    case = CASES[name]
    attack = registry.create(registry.load("attacks", name), case.settings)
    if case.kind == "crafted":
        _, view, _ = attacked(attack, **case.toy)
        return attack, view
    if case.view is not None:
        return attack, case.view()
    played = toy(**case.toy)
    view = cut(
        played.transcript,
        threat=Threat(),
        grants=Grants(auxiliary=case.auxiliary, challenge=case.challenge),
        own=played.own,
        memory={},
        rounds=None if case.kind == "run" else (0,),
        client=None if case.kind == "run" else 0,
    )
    return attack, view


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """One cache for all tests of this file: what is trained once may be reused, as in an audit."""
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path_factory.getbasetemp() / "contract-cache"))


NO_CONTROL = {"tbi"}
"""Attacks for which no small setting is known in which they beat every null (decision 0086)."""


class TestAttack(AttackContract):
    def test_is_registered_with_a_card(self, name, attack):
        if name in NO_CONTROL:
            assert registry.card("attacks", name).threat
            assert not registry.card("attacks", name).control
        else:
            AttackContract.test_is_registered_with_a_card(self, name, attack)

    @pytest.fixture(params=sorted(set(CASES) - set(ACTIVE)))
    def name(self, request):
        if request.param == "ggl" and not importlib.util.find_spec("cma"):
            pytest.skip("needs the extra ggl")
        return request.param

    @pytest.fixture
    def attack(self, name):
        return made(name)[0]

    @pytest.fixture
    def view(self, name):
        return made(name)[1]


def test_every_attack_that_changes_what_is_sent_is_held_to_the_contract_of_active_attacks():
    altering = {n for n in ours() if n in ACTIVE or made(n)[0].needs.changes}
    assert altering == set(ACTIVE)


class TestActiveAttack(ActiveAttackContract):
    @pytest.fixture(params=ACTIVE)
    def name(self, request):
        return request.param

    @pytest.fixture
    def attack(self, name):
        return registry.create(registry.load("attacks", name), CASES[name].settings)

    @pytest.fixture
    def settings(self, name):
        return CASES[name].toy
