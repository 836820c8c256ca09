"""Canary clients in a federation that ran: noise that is there is not accused, noise that is not is found."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from glasshouse.audit.captured.canaries import measure_captured_epsilon, score_canaries
from glasshouse.audit.captured.canary_file import FILE, Canary, read_canaries
from glasshouse.audit.preflight.inspect import problems
from glasshouse.audit.simulation.epsilon import LEVEL, numbers_of_guesses
from glasshouse.errors import BadFile
from glasshouse.privacy.gaussian import gaussian_mu
from glasshouse.privacy.one_run import Guesses, one_run_epsilon
from glasshouse.results.strength import EmpiricalEpsilon
from glasshouse.scenario.axes import cells
from glasshouse.scenario.load import from_dict
from glasshouse.scenario.rules import rule_problems
from glasshouse.testing.toys import toy
from glasshouse.transcript.files import write_transcript
from glasshouse.transcript.record import RoundRecord, Transcript
from glasshouse.wire import Aggregate, Broadcast, Refusal, Update

M, TENSOR, CLAIMED = 200, "w", 2.0
ENTRIES = 1000


def capture(
    tmp_path, *, noise: float, rounds: int = 2, seed: int = 0, summed: bool = False, kind="parameters"
):
    """Canary clients 3 to 202 of a federation, each behind Gaussian noise of its own."""
    rng = np.random.default_rng(seed)
    setting = toy().setting
    sent = torch.from_numpy(rng.normal(size=ENTRIES)).float()
    canaries = [
        Canary(client=3 + i, tensor=TENSOR, entry=int(e), included=bool(rng.random() < 0.5))
        for i, e in enumerate(rng.permutation(ENTRIES)[:M])
    ]
    records = []
    for number in range(rounds):
        updates = []
        for canary in canaries:
            change = torch.from_numpy(rng.normal(scale=noise, size=ENTRIES)).float()
            change[canary.entry] += float(canary.included)
            tensors = {TENSOR: change + (sent if kind == "parameters" else 0)}
            updates.append(Update(round=number, client=canary.client, kind=kind, tensors=tensors, examples=1))
        broadcast = Broadcast(round=number, architecture=setting.terms.architecture, tensors={TENSOR: sent})
        total = sum(u.tensors[TENSOR].double() for u in updates)
        aggregate = Aggregate(
            round=number, kind=kind, tensors={TENSOR: total}, weight=M,
            selected=tuple(c.client for c in canaries), examples=M,
        )  # fmt: skip
        seen = {"aggregate": aggregate} if summed else {"updates": tuple(updates)}
        records.append(RoundRecord(round=number, broadcasts=(broadcast,), **seen))
    terms = dataclasses.replace(setting.terms, clients=3 + M, cohort=3 + M)
    transcript = Transcript(terms=terms, rounds=tuple(records))
    write_transcript(transcript, tmp_path / "transcript")
    (tmp_path / FILE).write_text(json.dumps([dict(c) for c in canaries]))
    return transcript, canaries


def cell(tmp_path, *defenses, **epsilon):
    raw = {
        "name": "claims",
        "data": {"auxiliary": 30, "heldout": 20},
        "defenses": list(defenses),
        "attacks": [{"name": "label_inference"}],
        "audit": {"distractors": 9, "epsilon": {"claimed": CLAIMED, **epsilon}},
    }
    (one,) = cells(from_dict(raw))
    return dataclasses.replace(one, scenario=one.scenario.model_copy(update={"captured": str(tmp_path)}))


@pytest.mark.parametrize("kind", ["parameters", "delta", "gradient"])
@pytest.mark.parametrize("summed", [False, True])
def test_scores_are_what_was_added_over_the_rounds(tmp_path, kind, summed):
    transcript, canaries = capture(tmp_path, noise=0.0, summed=summed, kind=kind)
    each = 2 * np.array([c.included for c in canaries], float) / (M if summed else 1)
    assert np.allclose(score_canaries(transcript, canaries), each, atol=1e-6)


def test_addressed_models_are_what_their_clients_sent_back(tmp_path):
    transcript, canaries = capture(tmp_path, noise=0.0)
    own = {c.client: torch.full((ENTRIES,), float(c.client)) for c in canaries[::2]}

    def addressed(one):
        (common,) = one.broadcasts
        models = {c: common.tensors[TENSOR] + shift for c, shift in own.items()}
        sent = [dataclasses.replace(common, client=c, tensors={TENSOR: t}) for c, t in models.items()]
        updates = [
            dataclasses.replace(u, tensors={TENSOR: u.tensors[TENSOR] + own.get(u.client, 0)})
            for u in one.updates
        ]
        return dataclasses.replace(one, broadcasts=(common, *sent), updates=tuple(updates))

    differing = dataclasses.replace(transcript, rounds=tuple(map(addressed, transcript.rounds)))
    each = 2 * np.array([c.included for c in canaries], float)
    assert np.allclose(score_canaries(differing, canaries), each, atol=1e-3)


def test_broadcasts_of_what_changed_are_completed(tmp_path):
    transcript, canaries = capture(tmp_path, noise=0.0)
    first, second = transcript.rounds
    (common,) = second.broadcasts
    other = {"b": torch.ones(2)}
    changed = dataclasses.replace(common, tensors=other)
    addressed = dataclasses.replace(common, client=canaries[0].client, tensors=other)
    rounds = (first, dataclasses.replace(second, broadcasts=(changed, addressed)))
    partial = dataclasses.replace(transcript, rounds=rounds)
    assert np.array_equal(score_canaries(partial, canaries), score_canaries(transcript, canaries))


def test_a_model_that_was_not_kept_is_not_guessed(tmp_path):
    transcript, canaries = capture(tmp_path, noise=0.0)
    first, second = transcript.rounds
    unkept = dataclasses.replace(transcript, rounds=(first, dataclasses.replace(second, broadcasts=())))
    with pytest.raises(BadFile, match="what client 3 received in round 1"):
        score_canaries(unkept, canaries)


def test_a_sum_over_different_models_is_refused(tmp_path):
    transcript, canaries = capture(tmp_path, noise=0.0, summed=True)
    first, second = transcript.rounds
    (common,) = second.broadcasts
    own = dataclasses.replace(common, client=7)
    mixed = (first, dataclasses.replace(second, broadcasts=(common, own)))
    with pytest.raises(BadFile, match="one of its own for client 7"):
        score_canaries(dataclasses.replace(transcript, rounds=mixed), canaries)


def test_noise_that_is_off_contradicts_the_claim(tmp_path):
    capture(tmp_path, noise=1e-3)
    shown = measure_captured_epsilon(cell(tmp_path))
    assert isinstance(shown, EmpiricalEpsilon), shown
    assert (shown.unit, shown.canaries, shown.proved, shown.gaussian) == ("client", M, None, None)
    assert shown.correct == shown.guesses
    assert shown.contradicted


def test_noise_that_is_on_shows_less_than_is_claimed(tmp_path):
    noise = 2**0.5 / gaussian_mu(CLAIMED, delta=1e-5)
    capture(tmp_path, noise=noise)
    mechanism = {"name": "gaussian_mechanism", "epsilon": CLAIMED, "delta": 1e-5, "clip": 1.0, "rounds": 2}
    shown = measure_captured_epsilon(cell(tmp_path, mechanism))
    assert isinstance(shown, EmpiricalEpsilon), shown
    assert shown.proved == pytest.approx(CLAIMED, rel=1e-2)
    assert 0 < shown.shown < CLAIMED


def test_a_capture_without_canaries_is_refused_and_not_simulated(tmp_path):
    answer = measure_captured_epsilon(cell(tmp_path))
    assert isinstance(answer, Refusal)
    assert "20 canary clients or more" in answer.needs
    assert answer.got == "no such file"


def written(tmp_path, **changed):
    """``canaries.json`` of clients 3 to 22 with other keys in its first canary."""
    first, *others = (
        {"client": 3 + i, "tensor": TENSOR, "entry": i, "included": i % 3 == 0} for i in range(20)
    )
    (tmp_path / FILE).write_text(json.dumps([{**first, **changed}, *others]))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("included", 1),
        ("included", "false"),
        ("entry", "12"),
        ("entry", 1.0),
        ("entry", -1),
        ("client", True),
        ("client", -1),
        ("tensor", 3),
        ("coin", True),
    ],
)
def test_another_type_is_refused_before_anything_is_scored(tmp_path, key, value):
    written(tmp_path)
    assert len(read_canaries(tmp_path)) == 20
    written(tmp_path, **{key: value})
    with pytest.raises(BadFile, match=f"needs.*'0.{key}'"):
        read_canaries(tmp_path)


def test_canaries_that_share_an_entry_are_refused(tmp_path):
    written(tmp_path, entry=5)
    with pytest.raises(BadFile, match="'w', entry 5, of clients 3 and 8"):
        read_canaries(tmp_path)


def test_what_does_not_fit_is_said(tmp_path):
    transcript, canaries = capture(tmp_path, noise=0.0)
    assert read_canaries(tmp_path) == tuple(canaries)
    (tmp_path / FILE).write_text('{"client": 1}')
    with pytest.raises(BadFile, match="tuple"):
        read_canaries(tmp_path)
    (tmp_path / FILE).write_text(json.dumps([dict(c) for c in canaries[:19]]))
    with pytest.raises(BadFile, match="20 canary clients or more\\n  got    19"):
        read_canaries(tmp_path)
    (tmp_path / FILE).write_text(json.dumps([dict(c) for c in (*canaries, canaries[0])]))
    with pytest.raises(BadFile, match="client 3, 2 times"):
        read_canaries(tmp_path)
    with pytest.raises(BadFile, match="none of client 999"):
        score_canaries(transcript, [canaries[0].model_copy(update={"client": 999})])
    with pytest.raises(BadFile, match="an entry of a parameter"):
        score_canaries(transcript, [canaries[0].model_copy(update={"entry": ENTRIES})])


def test_canaries_that_are_missing_are_told_before_the_audit_starts(tmp_path):
    asked = cell(tmp_path).scenario
    (one,) = [p for p in problems(asked) if p.path == "audit.epsilon.claimed"]
    assert one.got.endswith("no such file")
    written(tmp_path)
    assert not [p for p in problems(asked) if p.path.startswith("audit.epsilon")]
    written(tmp_path, included=0)
    (one,) = [p for p in problems(asked) if p.path == "audit.epsilon.claimed"]
    assert "'0.included'" in one.needs


def test_canary_examples_of_a_federation_that_ran_are_refused(tmp_path):
    def found(**epsilon):
        return [p for p in rule_problems(cell(tmp_path, **epsilon).scenario) if "epsilon" in p.path]

    (one,) = found(unit="example")
    assert one.path == "audit.epsilon.unit"
    assert not found(unit="client")
    assert not found()
    assert not found(unit="example", claimed=0.0)


def test_canary_clients_do_not_contradict_what_examples_are_promised(tmp_path):
    capture(tmp_path, noise=1e-3)
    protected = {"name": "dp_sgd", "clip": 1.0, "epsilon": CLAIMED, "delta": 1e-5}
    answer = measure_captured_epsilon(cell(tmp_path, protected))
    assert isinstance(answer, Refusal)
    assert 'audit.epsilon.unit = "client"' in answer.needs
    shown = measure_captured_epsilon(cell(tmp_path, protected, unit="client"))
    assert isinstance(shown, EmpiricalEpsilon), shown
    assert shown.proved is None


@pytest.mark.parametrize(("claimed", "needed"), [(1.0, 28), (2.0, 52), (3.0, 110), (4.0, 254), (5.0, 640)])
def test_docs_say_how_many_canaries_contradict_a_claim(claimed, needed):
    def most(canaries):
        counts = [Guesses(canaries=canaries, guesses=r, correct=r) for r, _ in numbers_of_guesses(canaries)]
        return max(one_run_epsilon(c, delta=1e-5, level=LEVEL).epsilon for c in counts)

    assert most(needed - 1) <= claimed < most(needed)
