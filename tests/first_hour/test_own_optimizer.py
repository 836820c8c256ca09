"""Clients step by their own optimizer; every attack undoes it, repeats it, or refuses by name."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from glasshouse import registry
from glasshouse.attacks.base import Reconstruction
from glasshouse.attacks.inversion.label_inference import LabelInference
from glasshouse.attacks.parts.local_steps import ANY, clamp_softly
from glasshouse.attacks.parts.matching import distance
from glasshouse.attacks.parts.matching.distance import local_steps, objective
from glasshouse.attacks.parts.matching.plain import Plain
from glasshouse.attacks.parts.readout.summed import sum_of_round
from glasshouse.attacks.parts.replica import replica
from glasshouse.audit.attacking.needs import find_refusal, foresee_refusal
from glasshouse.errors import BadFile, BadScenario, Inapplicable
from glasshouse.federation.client import LocalTraining
from glasshouse.federation.defenses.gaussian_noise import GaussianNoise
from glasshouse.models.build import build, load
from glasshouse.rng import Rng
from glasshouse.scenario.load import from_dict
from glasshouse.settings import Optimizer
from glasshouse.testing.toys import toy
from glasshouse.transcript.cut import cut
from glasshouse.transcript.files import read_transcript, write_transcript
from glasshouse.transcript.grants import Grants
from glasshouse.transcript.threat import Threat

sys.path += [str(Path(__file__).parents[1] / part) for part in ("unit", "contract")]
from linear_attacks import attacked
from table_views import ROWS, of_gradient
from test_attack_contract import CASES

PLAIN = {
    "sgd": Optimizer(),
    "momentum": Optimizer(momentum=0.9),
    "decay": Optimizer(weight_decay=0.1),
    "schedule": Optimizer(momentum=0.5, schedule="step", over="steps", period=2, gamma=0.5),
}
OTHERS = {
    "adam": Optimizer(name="adam", weight_decay=0.01),
    "adamw": Optimizer(name="adamw", weight_decay=0.1, schedule="cosine", over="steps", period=7),
}
ALL = {**PLAIN, **OTHERS}
WEIGHTED = {"protocol": "fedavg", "learning_rate": 0.01, "model": "mlp"}
each = pytest.mark.parametrize("how", ALL.values(), ids=ALL)
each_linear = pytest.mark.parametrize("how", PLAIN.values(), ids=PLAIN)
each_other = pytest.mark.parametrize("how", OTHERS.values(), ids=OTHERS)


def client(played):
    return replica(played.view(), subject="a test")


@pytest.mark.parametrize(
    "name", sorted(n for n, c in CASES.items() if c.view is None and c.toy.get("sends") != "logits")
)
@each
def test_every_attack_runs_or_refuses_by_name(name, how, monkeypatch, tmp_path):
    """Attacks on logits apart: their clients' own Adam is an option of the protocol."""
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path))
    case = CASES[name]
    attack = registry.create(registry.load("attacks", name), case.settings)
    protocol = case.toy.get("protocol", "fedavg").replace("fedsgd", "fedavg")
    settings = {**case.toy, "protocol": protocol, "sends": "delta", "optimizer": how}
    assert attack.needs.optimizers <= ANY
    accounted = how.traits <= attack.needs.optimizers
    threat = Threat(changes=attack.needs.changes, sees=frozenset({"broadcast", "update", "aggregate", "own"}))
    given = Grants(auxiliary=case.auxiliary, challenge=case.challenge)
    if case.kind != "crafted" or not accounted:
        played = toy(**settings)
        refusal = find_refusal(attack, name, threat, given, played.setting.terms)
        assert (refusal is None) == accounted
        if refusal is not None:
            assert name in refusal.subject
            if protocol in attack.needs.protocols or not attack.needs.protocols:
                assert all(t in refusal.got for t in how.traits - attack.needs.optimizers)
            return
        view = cut(
            played.transcript, threat=Threat(), grants=given, own=played.own, memory={},
            rounds=None if case.kind == "run" else (0,), client=None if case.kind == "run" else 0,
        )  # fmt: skip
    else:
        if name == "maui":  # a change of parameters does not say of how many examples it is
            attack = replace(attack, head=replace(attack.head, shares=(0.5,)))
        _, view, _ = attacked(attack, **settings)
    assert attack.run(view, rng=Rng.root(0))


@pytest.mark.parametrize("name", sorted(n for n, c in CASES.items() if c.view is not None))
@each
def test_attacks_on_rows_and_trees_refuse_pictures_by_name(name, how):
    attack = registry.create(registry.load("attacks", name), CASES[name].settings)
    terms = toy(protocol="fedavg", sends="delta", optimizer=how).setting.terms
    refusal = find_refusal(attack, name, Threat(), Grants(auxiliary=CASES[name].auxiliary), terms)
    assert refusal is not None
    assert name in refusal.subject


@pytest.mark.parametrize(
    "how", [Optimizer(nesterov=True, momentum=0.9), *ALL.values()], ids=["nesterov", *ALL]
)
def test_rows_are_read_from_one_step_or_refused_by_name(how):
    """A change of one linear step is a gradient; one that the attack does not account for is refused."""
    attack, seen = registry.create(registry.load("attacks", "double_span"), {}), of_gradient(4)
    terms = replace(seen.terms, protocol="fedavg", sends="delta", learning_rate=0.01, optimizer=how)
    refusal = find_refusal(attack, "double_span", Threat(), seen.grants, terms)
    ignored = how.traits - attack.needs.optimizers
    assert (refusal is None) == (not ignored)
    if refusal is not None:
        assert "double_span" in refusal.subject
        assert all(trait in refusal.got for trait in ignored)
        return
    one, rows = seen.rounds[0], ROWS.pick(torch.arange(4))
    model = build(terms.architecture)
    load(model, one.broadcast.tensors)
    trained = LocalTraining.of(terms, round=0)(model, rows, rng=Rng.root(0))
    update = replace(one.updates[0], kind="delta", tensors=trained.tensors)
    claims = attack.run(
        replace(seen, terms=terms, rounds=(replace(one, updates={0: update}),)), rng=Rng.root(0)
    )
    (claim,) = [c for c in claims if isinstance(c, Reconstruction)]
    distances = torch.cdist(claim.inputs.flatten(1), rows.inputs.flatten(1).float())
    assert distances.min(0).values.max() < 1e-2


@each
def test_repeated_steps_are_those_of_torch(how):
    """Five images, batches of two, two epochs: the attack's own arithmetic against ``torch.optim``."""
    played = toy(examples=5, batch_size=2, local_epochs=2, optimizer=how, **WEIGHTED)
    rebuilt, private = client(played), played.setting.shard(0)
    steps = local_steps(rebuilt, "simulate")
    assert steps is not None
    model = build(played.setting.terms.architecture)
    load(model, played.transcript.rounds[0].broadcasts[0].tensors)
    parameters = dict(model.named_parameters())
    before = {name: p.detach().clone() for name, p in parameters.items()}
    train = LocalTraining.of(played.setting.terms, round=0)
    stepper = train.stepper(parameters.values())
    for step, rows in enumerate(steps.rows):
        stepper.zero_grad()
        F.cross_entropy(model(private.inputs[rows]), private.labels[rows]).backward()
        stepper.param_groups[0]["lr"] = train.rate(step)
        stepper.step()
    engine = Plain(rebuilt.model, rebuilt.received, rebuilt.delta(), steps=steps)
    ours = engine.update(private.inputs, private.labels)
    for name, p in parameters.items():
        torch.testing.assert_close(ours[name].detach(), p.detach() - before[name], rtol=1e-4, atol=1e-6)


@each_linear
def test_one_step_is_undone_exactly(how):
    honest = client(toy(examples=3, model="mlp")).gradient()
    played = toy(examples=3, optimizer=how, **WEIGHTED)
    torch.testing.assert_close(client(played).gradient(), honest, rtol=1e-3, atol=1e-5)
    view = played.view()
    name = next(iter(honest))
    total = sum_of_round(view.rounds[0], terms=view.terms, names=(name,), subject="a test")
    torch.testing.assert_close(total.gradient[name].float(), honest[name], rtol=1e-3, atol=1e-5)


@each
def test_repeated_steps_are_zero_at_the_truth(how, monkeypatch):
    monkeypatch.setattr(distance, "SOFTEN", 0.0)
    played = toy(examples=2, local_epochs=3, optimizer=how, **WEIGHTED)
    private = played.setting.shard(0)
    loss = objective(client(played), distance="cosine")
    assert abs(float(loss(private.inputs[None], private.labels[None], create_graph=False))) < 1e-3
    other = loss(private.inputs.flip(2)[None], private.labels[None], create_graph=False)
    assert float(other) > 0.01


@each_other
def test_one_step_of_adam_gives_the_clamped_gradient(how):
    """Levels far above ``eps``; below them the gradient itself, whatever the decay."""
    honest = client(toy(examples=3, model="mlp")).gradient()
    rebuilt = client(toy(examples=3, optimizer=how, **WEIGHTED))
    clamped, levels = rebuilt.clamped_gradient()
    pull = how.weight_decay if how.name == "adam" else 0.0
    pulled = {name: g + pull * rebuilt.received[name] for name, g in honest.items()}
    assert min(levels.values()) > 100 * how.eps
    for name, expected in clamp_softly(pulled, levels).items():
        torch.testing.assert_close(clamped[name], expected, rtol=0.2, atol=0.01 * levels[name])


def test_noise_on_adams_step_leaves_signs():
    played = toy(optimizer=OTHERS["adam"], defenses=(GaussianNoise(std=0.01),), **WEIGHTED)
    _, levels = client(played).clamped_gradient()
    assert set(levels.values()) == {OTHERS["adam"].eps}


@each_other
def test_softened_steps_have_a_slope_and_still_prefer_the_truth(how):
    played = toy(examples=1, optimizer=how, **WEIGHTED)
    private = played.setting.shard(0)
    loss = objective(client(played), distance="cosine")
    candidates = torch.cat([private.inputs, torch.rand_like(private.inputs)])[:, None].requires_grad_()
    losses = loss(candidates, private.labels.expand(2, -1))
    assert losses[0] < losses[1]
    (slope,) = torch.autograd.grad(losses.sum(), candidates)
    assert slope.isfinite().all()
    assert slope[1].any()


@each_other
def test_labels_show_in_signs(how):
    """One example: its class. Four: every class that is claimed was there, in some number."""
    for seed in range(5):
        played = toy(examples=1, optimizer=how, seed=seed, **WEIGHTED)
        (claim,) = LabelInference().run(played.view(), rng=Rng.root(0))
        assert claim.counts.argmax() == played.setting.shard(0).labels[0]
    played = toy(examples=4, optimizer=how, **WEIGHTED)
    (claim,) = LabelInference().run(played.view(), rng=Rng.root(0))
    assert claim.counts.sum() == 4
    assert set(claim.counts.nonzero().flatten().tolist()) == set(played.setting.shard(0).labels.tolist())


@each_other
def test_no_gradient_is_read_out_of_signs(how):
    played = toy(optimizer=how, **WEIGHTED)
    with pytest.raises(Inapplicable, match=rf"(?s)clients that step by sgd.*{how.name}.*repeat"):
        client(played).gradient()
    view = played.view()
    with pytest.raises(Inapplicable, match="clients that step by sgd"):
        sum_of_round(view.rounds[0], terms=view.terms, names=("head.weight",), subject="a test")


@each
def test_it_is_part_of_the_transcript(how, tmp_path):
    write_transcript(toy(optimizer=how, **WEIGHTED).transcript, tmp_path)
    assert read_transcript(tmp_path).terms.optimizer == how


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "lion"}, "optimizer.name"),
        ({"eps": -1.0}, "optimizer.eps"),
        ({"momentum": 0.9, "name": "adam"}, "betas"),
        ({"schedule": "cosine"}, "period"),
        ({"nesterov": 1}, "optimizer.nesterov"),
        ({"nesterov": True}, r"momentum > 0 with nesterov"),
    ],
)
def test_a_strangers_optimizer_is_checked(change, words, tmp_path):
    write_transcript(toy(**WEIGHTED).transcript, tmp_path)
    path = tmp_path / "terms.json"
    terms = json.loads(path.read_text())
    terms["optimizer"] |= change
    path.write_text(json.dumps(terms))
    with pytest.raises(BadFile, match=words):
        read_transcript(tmp_path)


def scenario(**federation):
    table = {"protocol": "fedavg", **federation}
    return from_dict({"name": "x", "federation": table, "attacks": ["linear_input", "inverting_gradients"]})


def test_check_says_who_will_refuse():
    asked = scenario(optimizer={"name": "adam"})
    refusal, none = (foresee_refusal(asked, attack) for attack in asked.attacks)
    assert none is None
    assert "linear_input" in refusal.subject
    assert refusal.got == "federation.optimizer with adam"
    assert "inverting_gradients" in refusal.fix


@pytest.mark.parametrize(
    ("federation", "words"),
    [
        ({"protocol": "fedsgd", "optimizer": {"name": "adam"}}, "clients send gradients"),
        ({"protocol": "fedsgd", "optimizer": {"momentum": 0.9}}, "clients send gradients"),
        ({"optimizer": {"name": "adamw", "momentum": 0.9}}, "betas"),
        ({"optimizer": {"period": 3}}, "none with constant"),
        ({"optimizer": {"name": "adan"}}, "adam"),
    ],
)
def test_what_makes_no_sense_is_refused(federation, words):
    with pytest.raises(BadScenario, match=words):
        scenario(**federation)


def test_a_schedule_over_rounds_slows_the_server_of_gradients():
    """Halved after every round: with one client and one image the steps are those of the gradients sent."""
    how = Optimizer(schedule="step", period=1, gamma=0.5)
    played = toy(model="mlp", clients=1, rounds=3, optimizer=how, learning_rate=0.2)
    model = [r.broadcasts[0].tensors for r in played.transcript.rounds] + [played.final]
    for number, one in enumerate(played.transcript.rounds):
        (update,) = one.updates
        for name, g in update.tensors.items():
            moved = model[number][name] - model[number + 1][name]
            torch.testing.assert_close(moved, 0.2 * 0.5**number * g, rtol=1e-3, atol=1e-6)


def test_plain_sgd_is_what_it_was():
    """Bit for bit the loop of the first version."""
    played = toy(examples=4, batch_size=2, local_epochs=2, **WEIGHTED)
    terms, data = played.setting.terms, played.setting.shard(0)
    start = played.transcript.rounds[0].broadcasts[0].tensors
    model, twin = build(terms.architecture), build(terms.architecture)
    load(model, start)
    load(twin, start)
    trained = LocalTraining.of(terms, round=0)(model, data, rng=Rng.root(3))
    optimizer = torch.optim.SGD(twin.parameters(), lr=terms.learning_rate, momentum=0.0)
    for rows in trained.order:
        optimizer.zero_grad()
        F.cross_entropy(twin(data.inputs[rows]), data.labels[rows]).backward()
        optimizer.step()
    for name, p in twin.named_parameters():
        assert torch.equal(p.detach() - start[name], trained.tensors[name])
