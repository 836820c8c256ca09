"""Which defences ran, from a transcript alone: on, off, mis-set, and what cannot be told."""

import dataclasses
import json
import math

import pytest
import torch

from glasshouse import defenses as check_run
from glasshouse.attacks.parts.matching.transforms import estimate
from glasshouse.audit.defenses.check import check_defenses
from glasshouse.audit.defenses.declared import FAULTS
from glasshouse.cli.main import main
from glasshouse.errors import BadFile, BadValue, Inapplicable
from glasshouse.federation.client import LocalTraining
from glasshouse.models.build import build, state
from glasshouse.registry import load
from glasshouse.rng import Rng
from glasshouse.settings import Optimizer
from glasshouse.testing.toys import toy
from glasshouse.transcript.files import write_transcript
from glasshouse.transcript.record import RoundRecord, Transcript
from glasshouse.wire import Architecture, Batch, Broadcast, Mechanism, Terms, Update

ROUNDS = 10
ON = {
    "clip": {"norm": 0.05},
    "clip_layers": {"norm": 0.02},
    "clip_values": {"bound": 0.001},
    "gaussian_noise": {"std": 0.01},
    "laplace_noise": {"scale": 0.01},
    "prune": {"share": 0.9},
    "percentile": {"percentile": 80.0, "bound": 0.001},
    "sparse_vector": {"bound": 0.001},
    "quantise": {"bits": 4},
    "sign": {},
    "gaussian_mechanism": {"epsilon": 2000.0, "delta": 1e-5, "clip": 0.05},
    "dp_sgd": {"noise_multiplier": 1.0, "clip": 0.1},
}


def make(name, **settings):
    return load("defenses", name)(**(settings or ON[name]))


def play(*chain, protocol="fedavg", **settings) -> Transcript:
    settings = {"model": "lenet5", "clients": 1, "examples": 4, "rounds": ROUNDS, **settings}
    if protocol == "fedavg":
        settings = {"batch_size": 2, **settings}
    return toy(protocol=protocol, defenses=chain, **settings).transcript


def rows_of(transcript, *declared):
    return check_defenses(transcript, [d.describe() for d in declared])


def said(rows, name):
    return {row.ruling for row in rows if row.defense == name}


@pytest.fixture(scope="module")
def plain():
    return {protocol: play(protocol=protocol) for protocol in ("fedsgd", "fedavg")}


@pytest.mark.parametrize("protocol", ["fedsgd", "fedavg"])
def test_plain_updates_show_no_defence(plain, protocol):
    assert rows_of(plain[protocol]) == ()


@pytest.mark.parametrize("name", sorted(ON))
@pytest.mark.parametrize("protocol", ["fedsgd", "fedavg"])
def test_a_declared_defence_is_recognised_when_on_and_reported_when_off(plain, name, protocol):
    declared = make(name)
    rows = rows_of(play(declared, protocol=protocol), declared)
    assert "as declared" in said(rows, name)
    assert not {row.ruling for row in rows} & {*FAULTS, "not declared"}
    assert said(rows_of(plain[protocol], declared), name) & FAULTS


@pytest.mark.parametrize(
    "name", ["gaussian_noise", "laplace_noise", "clip", "clip_values", "prune", "quantise"]
)
def test_the_strength_is_measured_and_its_interval_holds_it(name):
    (row,) = [r for r in rows_of(play(make(name)), make(name)) if r.defense == name]
    assert row.observation.value == pytest.approx(row.declared, rel=0.1)
    assert (
        row.observation.low - 0.05 * row.declared
        <= row.declared
        <= row.observation.high + 0.05 * row.declared
    )


def test_a_clip_that_never_binds(plain):
    assert said(rows_of(plain["fedavg"], make("clip", norm=100.0)), "clip") == {"never binds"}


def test_a_clip_at_another_norm_than_declared():
    rows = rows_of(play(make("clip", norm=0.02)), make("clip", norm=0.05))
    assert said(rows, "clip") == {"mis-set"}


def test_noise_ten_times_too_small():
    rows = rows_of(play(make("gaussian_noise", std=0.001)), make("gaussian_noise", std=0.01))
    (row,) = [row for row in rows if row.defense == "gaussian_noise"]
    assert row.ruling == "mis-set"
    assert row.observation.value == pytest.approx(0.001, rel=0.1)


def test_noise_in_half_of_the_rounds():
    noisy, bare = play(make("gaussian_noise")), play()
    mixed = dataclasses.replace(noisy, rounds=(*noisy.rounds[:5], *bare.rounds[5:]))
    (row,) = [r for r in rows_of(mixed, make("gaussian_noise")) if r.defense == "gaussian_noise"]
    assert (row.ruling, row.observation.shows, row.observation.updates) == ("partly", 5, ROUNDS)


def test_laplace_is_not_gaussian():
    rows = rows_of(play(make("laplace_noise")), make("gaussian_noise", std=0.01 * math.sqrt(2)))
    assert said(rows, "gaussian_noise") == {"mis-set"}


def test_a_defence_that_acts_afterwards_may_hide_an_earlier_one():
    chain = make("clip"), make("prune")
    rows = rows_of(play(*chain), *chain)
    assert said(rows, "clip") == {"cannot be told"}
    assert said(rows, "prune") == {"as declared"}


def test_a_clip_shows_under_noise_that_is_small_enough():
    chain = make("clip"), make("gaussian_noise", std=1e-5)
    rows = rows_of(play(*chain, learning_rate=0.5), *chain)
    assert said(rows, "clip") == said(rows, "gaussian_noise") == {"as declared"}


def test_adam_hides_small_noise_unless_dead_rows_show_that_there_is_none():
    adam = {"optimizer": Optimizer(name="adam"), "examples": 1, "batch_size": 1}
    assert rows_of(play(**adam)) == ()  # though its first step is a sign
    assert said(rows_of(play(**adam), make("gaussian_noise")), "gaussian_noise") == {"off"}
    noisy = rows_of(play(make("gaussian_noise"), **adam), make("gaussian_noise"))
    assert said(noisy, "gaussian_noise") == {"cannot be told"}


@pytest.mark.parametrize("optimizer", [{"weight_decay": 0.1}, {"momentum": 0.9, "weight_decay": 0.1}])
def test_weight_decay_is_not_taken_for_noise(optimizer):
    transcript = play(optimizer=Optimizer(**optimizer), model="lenet_sigmoid")  # no dead rows to go by
    assert rows_of(transcript) == ()


def test_parameters_are_checked_like_changes():
    rows = rows_of(play(make("gaussian_noise"), sends="parameters"), make("gaussian_noise"))
    assert said(rows, "gaussian_noise") == {"as declared"}


def as_parameters(transcript):
    """What clients send who add their change to what they received, in float32."""
    records = []
    for record in transcript.rounds:
        before = record.broadcasts[0].tensors
        updates = tuple(
            dataclasses.replace(
                u, kind="parameters", tensors={name: before[name] + t for name, t in u.tensors.items()}
            )
            for u in record.updates
        )
        records.append(dataclasses.replace(record, updates=updates))
    terms = dataclasses.replace(transcript.terms, sends="parameters")
    return dataclasses.replace(transcript, terms=terms, rounds=tuple(records))


@pytest.mark.parametrize("seed", range(3))
def test_changes_that_parameters_round_away_are_not_taken_for_pruning(seed):
    """Four images move large weights behind sigmoids by less than float32 holds, at 2 % of the last layer."""
    model = Architecture.of("lenet_sigmoid", (3, 32, 32), 10)
    draw = torch.Generator().manual_seed(seed)
    images, labels = torch.rand(4, 3, 32, 32, generator=draw), torch.randint(10, (4,), generator=draw)
    data = Batch(inputs=images, labels=labels)
    terms = Terms(
        protocol="fedavg",
        architecture=model,
        sends="delta",
        clients=1,
        cohort=1,
        batch_size=4,
        learning_rate=0.1,
    )
    network = build(model, rng=Rng.root(seed))
    before = state(network)
    sent = LocalTraining.of(terms, round=0)(network, data, rng=Rng.root(0))
    update = Update(round=0, client=0, kind="delta", tensors=sent.tensors, examples=4, steps=1)
    broadcast = Broadcast(round=0, architecture=model, tensors=before)
    record = RoundRecord(round=0, broadcasts=(broadcast,), updates=(update,))
    assert rows_of(as_parameters(Transcript(terms=terms, rounds=(record,)))) == ()


def test_changes_as_small_as_rounding_reach_no_bound():
    """An update whose size rounding hides is as large as the largest for all that is known of it."""
    transcript = as_parameters(play(learning_rate=1e-2))
    first, *others = transcript.rounds
    before, (update,) = first.broadcasts[0].tensors, first.updates
    odd = {name: (torch.arange(t.numel()) % 2).view_as(t) for name, t in before.items()}
    barely = {name: t + 2.0**-24 * t.abs() * odd[name] for name, t in before.items()}
    still = dataclasses.replace(update, tensors=barely)
    rounds = (dataclasses.replace(first, updates=(still,)), *others)
    assert rows_of(dataclasses.replace(transcript, rounds=rounds)) == ()


@pytest.mark.parametrize("name", ["prune", "percentile"])
def test_zeros_of_a_defence_show_in_parameters(name):
    assert said(rows_of(as_parameters(play(make(name))), make(name)), name) == {"as declared"}


def test_a_secure_sum_that_is_off_is_reported():
    summed = play(secure_sum=True, clients=2)
    assert said(check_defenses(summed, [make("clip").describe()]), "secure_sum") == {"as declared"}
    assert said(check_defenses(summed, [make("clip").describe()]), "clip") == {"cannot be told"}
    terms = dataclasses.replace(summed.terms, secure_sum=True)
    rows = check_defenses(dataclasses.replace(play(clients=2), terms=terms), [])
    assert said(rows, "secure_sum") == {"off"}


def test_noise_that_the_server_adds():
    transcript, std = play(clients=3), 0.003
    generator = torch.Generator().manual_seed(0)
    rounds = []
    for record in transcript.rounds:
        (broadcast,) = record.broadcasts
        noisy = {n: t + std * torch.randn(t.shape, generator=generator) for n, t in broadcast.tensors.items()}
        if record.round < 2:
            noisy = dict(broadcast.tensors)
        rounds.append(
            dataclasses.replace(record, broadcasts=(dataclasses.replace(broadcast, tensors=noisy),))
        )
    first = dataclasses.replace(transcript, rounds=(transcript.rounds[1], rounds[2]))
    declared = [Mechanism(name="server_noise", place="update", parameters={"std": std})]
    (row,) = check_defenses(first, declared)
    assert (row.client, row.ruling) == (None, "as declared")
    assert row.observation.value == pytest.approx(std, rel=0.05)
    assert {row.ruling for row in check_defenses(transcript, declared)} == {"off"}


def test_logits_are_refused():
    transcript = play()
    logits = dataclasses.replace(transcript, terms=dataclasses.replace(transcript.terms, sends="logits"))
    with pytest.raises(Inapplicable, match="updates of a model's parameters"):
        check_defenses(logits, [])


def test_the_command_says_what_is_off_and_exits_with_1(tmp_path, capsys):
    write_transcript(play(make("clip")), tmp_path / "transcript")
    with pytest.raises(SystemExit) as stop:
        main(["defenses", str(tmp_path), "--declared", "clip norm=0.05", "--json"])
    assert stop.value.code == 0
    assert [row["ruling"] for row in json.loads(capsys.readouterr().out)] == ["as declared"]
    declared = ["--declared", "clip norm=0.05", "--declared", "gaussian_noise std=0.1"]
    with pytest.raises(SystemExit) as stop:
        main(["defenses", str(tmp_path), *declared])
    assert stop.value.code == 1
    assert "off" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["percentile", "sparse_vector"])
def test_attacks_adapt_to_sparse_filters_as_to_pruning(name):
    tensors = play(make(name)).rounds[0].updates[0].tensors
    masks = estimate(tensors, last="head").masks
    assert masks.keys() == tensors.keys()
    assert all(torch.equal(mask, tensors[n] != 0) for n, mask in masks.items())


def test_sparse_vector_sends_at_most_its_fraction_and_less_with_replacement():
    shares = {}
    for replace in (False, True):
        tensors = play(make("sparse_vector", bound=0.001, replace=replace)).rounds[0].updates[0].tensors
        flat = torch.cat([t.flatten() for t in tensors.values()])
        assert float(flat.abs().max()) <= 0.002 * (1 + 1e-6)  # two local steps
        shares[replace] = float((flat != 0).double().mean())
    assert shares[False] == pytest.approx(0.1, abs=1e-3)
    assert shares[True] < shares[False]


def test_what_is_no_run_and_no_declaration_is_refused(tmp_path):
    with pytest.raises(BadFile, match="transcript/"):
        check_run(tmp_path)
    write_transcript(play(), tmp_path / "transcript")
    with pytest.raises(BadValue, match="'clip norm=4'"):
        check_run(tmp_path, declared=["clip norm"])
    (checked,) = check_run(tmp_path, declared=["server_noise std=0.1"])
    assert [row.ruling for row in checked.faults] == ["off"]
