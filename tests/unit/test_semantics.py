"""Naming a defence, and what a public classifier sees: right and wrong, end to end."""

import pytest
import torch

from glasshouse.attacks.base import About, DefenseGuess, Representations
from glasshouse.audit.attacking.claims import Outcome
from glasshouse.audit.scoring.nulls import NullBook
from glasshouse.audit.scoring.score import score_outcomes
from glasshouse.audit.scoring.truth import GroundTruth
from glasshouse.errors import BadValue, NothingClaimed, Undefined
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.representations import Leakage, LeakagePrecision
from glasshouse.metrics.semantics import AttributeAgreement, DefenseNamed
from glasshouse.modalities.image import Image
from glasshouse.rng import Rng
from glasshouse.truth.record import Truth, Used
from glasshouse.wire import Batch

THREE = Batch(inputs=torch.arange(3.0).view(3, 1, 1, 1).expand(3, 1, 2, 2), labels=torch.arange(3))


def ground(defense: str, context: ScoreContext | None = None) -> tuple[GroundTruth, NullBook]:
    used = {(0, client): Used(steps=((client,),), behaviour="honest") for client in range(3)}
    truth = Truth(private=THREE, shards={c: (c,) for c in range(3)}, used=used)
    known = context or ScoreContext()
    book = NullBook(modality=Image(size=(1, 2, 2)), auxiliary=None, context=known, rng=Rng.root(0))
    return GroundTruth(truth=truth, context=known, defense=defense), book


def guess(name: str, client: int) -> Outcome:
    return Outcome(claims=(DefenseGuess(about=About(rounds=(0,), client=client), name=name),), seconds=0.0)


def test_only_the_whole_chain_in_its_order_counts():
    items = [guess(n, i) for i, n in enumerate(["clip + gaussian_noise", "gaussian_noise + clip", "clip"])]
    scored = score_outcomes("defense_named", DefenseNamed(), items, *ground("clip + gaussian_noise"))
    assert scored is not None
    assert [float(v[0]) for v in scored.values] == [1.0, 0.0, 0.0]
    assert [float(v[0]) for v in scored.nulls] == [0.125] * 3


def test_unknown_is_wrong_even_where_nothing_ran():
    scored = score_outcomes(
        "defense_named", DefenseNamed(), [guess("unknown", 0), guess("none", 1)], *ground("none")
    )
    assert scored is not None
    assert [float(v[0]) for v in scored.values] == [0.0, 1.0]


def test_a_claim_about_an_update_that_was_not_recorded_is_never_just_left_out():
    with pytest.raises(Undefined, match="recorded"):
        score_outcomes("defense_named", DefenseNamed(), [guess("none", 0), guess("none", 7)], *ground("none"))


def test_victims_of_whom_nothing_was_claimed_are_left_out_of_a_precision_alone():
    def read(*clients: int) -> list[Outcome]:
        vectors = {0: torch.zeros(0, 4), 1: torch.full((1, 4), 1.0), 2: torch.full((1, 4), 9.0)}
        claims = [Representations(about=About(rounds=(0,), client=c), vectors=vectors[c]) for c in clients]
        return [Outcome(claims=tuple(claims))]

    one = ground("none", ScoreContext(features=lambda images: images.flatten(1)))
    precision = score_outcomes("leakage_precision", LeakagePrecision(), read(0, 1, 2), *one)
    leakage = score_outcomes("leakage", Leakage(), read(0, 1, 2), *one)
    assert precision is not None
    assert leakage is not None
    assert [v.tolist() for v in precision.values] == [[1.0], [0.0]]
    assert [v.tolist() for v in leakage.values] == [[0.0], [1.0], [0.0]]
    with pytest.raises(NothingClaimed):
        score_outcomes("leakage_precision", LeakagePrecision(), read(0), *one)


def test_a_guess_needs_something_to_choose_from():
    with pytest.raises(BadValue, match="choices"):
        DefenseNamed(choices=1)


def test_agreement_is_with_the_paired_original():
    dark, light = torch.zeros(1, 3, 4, 4), torch.ones(1, 3, 4, 4)
    context = ScoreContext(classify=lambda x: (x.mean((1, 2, 3)) > 0.5).long())
    values = AttributeAgreement().score(
        torch.cat([light * 0.9, dark]), torch.cat([dark, light]), context=context
    )
    assert values.tolist() == [1.0, 1.0]
    wrong = AttributeAgreement().score(light * 0.6, dark, context=context)
    assert wrong.tolist() == [0.0]


def test_agreement_without_a_classifier_is_undefined():
    with pytest.raises(Undefined, match="public classifier"):
        AttributeAgreement().score(torch.zeros(1, 3, 4, 4), torch.zeros(1, 3, 4, 4), context=ScoreContext())
