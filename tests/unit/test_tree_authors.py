"""Who wrote which tree of bagging: what a client sees, what the attack links, and how claims are scored."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from glasshouse import registry
from glasshouse.attacks.authorship import UNNAMED, Authors
from glasshouse.attacks.base import About
from glasshouse.attacks.trees.tree_authors import TreeAuthors
from glasshouse.audit.scoring.pair import pair
from glasshouse.audit.scoring.truth import GroundTruth, rotate_victims
from glasshouse.audit.simulation.monitor import BothSides
from glasshouse.data.tables.clinic import clinic
from glasshouse.errors import Inapplicable, Undefined
from glasshouse.federation.setting import Setting
from glasshouse.formats.base import read_document
from glasshouse.formats.carried import NAME, bytes_of
from glasshouse.metrics.authors import AuthorsNamed
from glasshouse.metrics.base import ScoreContext
from glasshouse.models.build import build, state
from glasshouse.rng import Rng
from glasshouse.transcript.cut import cut
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.record import Keep, Log
from glasshouse.transcript.threat import Threat
from glasshouse.transcript.view import View
from glasshouse.truth.record import Truth, read_truth, write_truth
from glasshouse.wire import Architecture, Batch, Terms

SIZES, ROUNDS, ADVERSARY = (60, 30, 90, 130), 5, 0
METRIC, CONTEXT = AuthorsNamed(), ScoreContext()
NOBODY = Batch(inputs=torch.zeros(1, 1), labels=torch.zeros(1, dtype=torch.int64))


@cache
def played() -> BothSides:
    """Four clinics of different sizes boost a common model by bagging."""
    source = clinic("")
    architecture = Architecture(
        name="boosted_trees", inputs=source.inputs, task=source.task, arguments={"capacity": 2**18}
    )
    terms = Terms(
        protocol="xgb_bagging", architecture=architecture, sends="document", clients=len(SIZES),
        cohort=len(SIZES), batch_size=1, options={"max_depth": 3, "base_score": 0.5},
    )  # fmt: skip
    setting = Setting(
        terms=terms,
        rounds=ROUNDS,
        private=source.splits["train"].batch().pick(torch.arange(sum(SIZES))),
        shards=tuple(torch.arange(sum(SIZES)).split(SIZES)),
        start=state(build(architecture, rng=Rng.root(0))),
        build=build,
    )
    recorder = BothSides(log=Log(terms=terms, keep=Keep()))
    registry.load("protocols", "xgb_bagging")().play(setting, recorder=recorder, rng=Rng.root(0))
    return recorder


def seen_by(role: str, *, rounds: range | None = None) -> View:
    client = ADVERSARY if role == "client" else None
    sees = frozenset({"broadcast"} | ({"update"} if role == "server" else set()))
    threat = Threat(role=role, sees=sees, client=client)
    public = clinic("").splits["train"].batch().pick(torch.arange(400, 700))
    return cut(
        played().log.transcript(), threat=threat, grants=Grants(auxiliary=public), own={}, memory={},
        rounds=rounds,
    )  # fmt: skip


def ground(arrived, *, adversary=None) -> GroundTruth:
    truth = Truth(private=NOBODY, shards={}, used={}, arrived=arrived)
    return GroundTruth(truth=truth, context=CONTEXT, run="run", adversary=adversary)


def scores(claim: Authors, told: GroundTruth) -> tuple[list[float], list[float]]:
    """Mean score of the claim about each client, and of its null."""
    pairs = pair(claim, METRIC, told)
    sides = [(one.own, one.blind) for one in pairs]
    return tuple(
        [float(METRIC.score(s.claimed, s.truth, context=CONTEXT).mean()) for s in part]
        for part in zip(*sides, strict=True)
    )


def right(arrived) -> Authors:
    """The claim that is true."""
    rows = [[arrived[0].index(client) for client in order] for order in arrived.values()]
    return Authors(about=About(rounds=tuple(arrived)), authors=torch.tensor(rows))


def test_trees_come_round_in_the_order_in_which_they_arrived():
    record = played().log.transcript().rounds
    orders = played().arrived
    assert {tuple(sorted(order)) for order in orders.values()} == {tuple(range(len(SIZES)))}
    assert len(set(orders.values())) > 1
    _, common = read_document(bytes_of(record[1].broadcasts[0].tensors[NAME]))
    sent = {u.client: read_document(bytes_of(u.tensors[NAME]))[1] for u in record[0].updates}
    for tree, client in zip(common.trees, orders[0], strict=True):
        assert tree.hessian.tolist() == sent[client].trees[0].hessian.tolist()


def test_a_client_sees_what_it_sent_itself_and_nobody_elses():
    for role in ("client", "bystander"):
        for one in seen_by(role).rounds:
            assert not one.updates
            assert (
                (one.sent is not None and one.sent.client == ADVERSARY) if role == "client" else not one.sent
            )


@pytest.mark.parametrize("role", ["client", "bystander"])
def test_trees_of_clients_of_different_sizes_are_linked(role):
    (claim,) = TreeAuthors().run(seen_by(role), rng=Rng.root(0))
    adversary = ADVERSARY if role == "client" else None
    found, null = scores(claim, ground(played().arrived, adversary=adversary))
    assert len(found) == len(SIZES) - (role == "client")
    assert sum(found) / len(found) > 0.85
    assert claim.about.rounds == tuple(range(ROUNDS - 1))
    assert sum(null) / len(null) < 0.6


def test_it_refuses_a_server_and_rounds_that_are_missing():
    with pytest.raises(Inapplicable, match="who sees the common trees without names"):
        TreeAuthors().run(seen_by("server"), rng=Rng.root(0))
    with pytest.raises(Inapplicable, match="every round from the first on"):
        TreeAuthors().run(seen_by("client", rounds=range(1, 5)), rng=Rng.root(0))
    unsent = seen_by("client")
    unsent = replace(unsent, rounds=tuple(replace(one, sent=None) for one in unsent.rounds))
    with pytest.raises(Inapplicable, match="what the attacking client itself sent"):
        TreeAuthors().run(unsent, rng=Rng.root(0))


def test_a_right_claim_scores_one_and_chance_is_one_of_the_other_clients():
    arrived = {0: (0, 1, 2, 3), 1: (3, 2, 1, 0), 2: (1, 0, 3, 2)}
    assert scores(right(arrived), ground(arrived)) == ([1.0] * 4, [0.25] * 4)
    own, null = scores(right(arrived), ground(arrived, adversary=2))
    assert own == [1.0] * 3
    assert null == pytest.approx([1 / 3] * 3)


def test_whoever_knows_that_the_order_hardly_changes_needs_no_trees():
    arrived = dict.fromkeys(range(4), (2, 0, 1))
    assert scores(right(arrived), ground(arrived)) == ([1.0] * 3, [1.0] * 3)


def test_a_claim_is_held_against_other_authors_and_a_control_against_other_messages():
    arrived = {0: (0, 1, 2, 3), 1: (3, 1, 2, 0), 2: (1, 0, 3, 2)}
    told = ground(arrived)
    for one in pair(right(arrived), METRIC, told):
        assert len(one.others) == 3
        assert all(METRIC.score(s.claimed, s.truth, context=CONTEXT).sum() == 0 for s in one.others)
    turned = told.against(rotate_victims(told.truth))
    assert scores(right(arrived), turned)[0] == [0.0] * 4


def test_silence_is_a_miss_in_every_round_that_was_sent_round():
    arrived = {0: (0, 1, 2), 1: (2, 1, 0), 2: (1, 0, 2), 3: (0, 2, 1)}
    terms = played().log.terms
    empty = Authors.silence(About(rounds=(0,)), replace(terms, clients=3, cohort=3))
    pairs = pair(empty, METRIC, ground(arrived))
    assert [(len(one.own.truth), float(one.own.claimed.sum()), one.answered) for one in pairs] == [
        (2, 0.0, False)
    ] * 3
    assert (empty.authors == UNNAMED).all()


def test_without_the_order_of_arrival_there_is_nothing_to_compare_with():
    with pytest.raises(Undefined, match="the order in which messages came"):
        pair(right({0: (0, 1), 1: (1, 0)}), METRIC, ground({}))


def test_the_order_of_arrival_is_part_of_the_truth_on_disk(tmp_path):
    truth = Truth(private=NOBODY, shards={0: (0,)}, used={}, arrived={0: (1, 0), 1: (0, 1)})
    write_truth(truth, tmp_path)
    assert read_truth(tmp_path).arrived == truth.arrived
