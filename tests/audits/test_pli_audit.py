"""A whole audit of a logit protocol: roles, findings beside nulls, exhibits, replay of accuracy per round."""

import json

import numpy as np
import pytest
import torch

from glasshouse import registry
from glasshouse.attacks.base import ClassRepresentatives
from glasshouse.audit.attacking.claims import read_outcome
from glasshouse.audit.replay import replay
from glasshouse.audit.run import audit
from glasshouse.audit.scoring.nulls import OWNERS
from glasshouse.audit.scoring.truth import exchange_classes
from glasshouse.audit.simulation.build import build
from glasshouse.audit.simulation.monitor import SERVER, BothSides, ModelMonitor
from glasshouse.data.domains import LowerHalfMask
from glasshouse.data.sources import load as load_source
from glasshouse.errors import BadScenario
from glasshouse.metrics.gallery import OWN_PRIOR, PRIOR, PUBLIC
from glasshouse.results.files import read_result
from glasshouse.results.vocabulary import STRONGEST, WITHOUT_UPLOADS
from glasshouse.scenario.axes import cells
from glasshouse.scenario.load import load
from glasshouse.store import read_tensors
from glasshouse.transcript.files import read_transcript
from glasshouse.transcript.record import Log
from glasshouse.truth.record import Truth, read_truth
from glasshouse.wire import Batch

SMALL = [
    "data.domains.per_class=12",
    "federation.clients=2",
    'audit.metrics=["attack_accuracy", "ssim_private", "ssim_gap", "owner"]',
    "audit.controls=false",
    "federation.rounds=2",
    "attacks.*.training.width=8",
    "attacks.*.training.epochs=1",
    "audit.seeds=[0, 1]",
]


TBI = 'attacks=[{name="tbi", training={width=8, epochs=1}}]'


def rounds_read(run):
    """By attack and unit, the rounds of every claim of images."""
    items = [read_outcome(path.parent).claims for path in run.glob("cells/*/claims/*/*/claims.json")]
    return [[c.about.rounds for c in claims if isinstance(c, ClassRepresentatives)] for claims in items]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("pli") / "run"
    audit(load("pli-digits", sets=[*SMALL, "attacks.0.prior=ridge"]), out=out, jobs=1)
    return out


def test_findings_have_a_null_of_known_name_and_count_each_private_class_once(run):
    findings = read_result(run / "result.json").findings
    files = map(read_tensors, run.glob("cells/*/truth/scoring.safetensors"))
    items = [scoring["gallery.classes"].tolist() for scoring in files]
    assert [len(set(some)) for some in items] == [4, 4]
    digits = set().union(*items)
    assert len(digits) < 8, "the seeds share a digit, or this test shows nothing"
    assert {f.attack for f in findings} == {"pli", "PLI averaged", "tbi"}
    for f in findings:
        assert f.n == len(digits)  # not 8: a digit in both seeds is one victim
        assert f.baseline in (PRIOR, OWN_PRIOR, PUBLIC, OWNERS, WITHOUT_UPLOADS, STRONGEST)
        assert f.verdict != "no power"
    owner = [f for f in findings if f.metric == "owner"]
    assert {f.baseline_value for f in owner} == {0.5}


def test_the_last_upload_is_read_although_audit_rounds_names_no_such_round(run):
    """Two rounds have three uploads; with the first the server has no logits of its own yet."""
    assert rounds_read(run) == [[(1,), (1, 2)]] * 6  # three attacks, two seeds


def test_the_last_upload_alone_can_be_kept(tmp_path):
    alone = [*SMALL, TBI, "federation.keep.rounds=[2]", "audit.seeds=[0]"]
    audit(load("pli-digits", sets=alone), out=tmp_path / "run", jobs=1)
    assert rounds_read(tmp_path / "run") == [[(2,)]]
    with pytest.raises(BadScenario) as caught:
        load("pli-digits", sets=[*SMALL, "federation.keep.rounds=[3]"])
    assert [p.needs for p in caught.value.problems] == ["a round from 0 to 2"]


@pytest.fixture
def masked(tmp_path):
    """Settings: digits in one archive and, as the other domain, the same behind a mask in another."""
    images = load_source("digits").splits["train"].batch()
    places = {}
    for name, result in (("clear", images.inputs), ("masked", LowerHalfMask()(images.inputs))):
        places[name] = tmp_path / f"{name}.npz"
        np.savez(places[name], train_images=result[:, 0].numpy(), train_labels=images.labels.numpy())
    return [
        f'data.source="npz:{places["clear"]}"',
        f'data.domains.other="npz:{places["masked"]}"',
        "data.domains.shifts=[]",
    ]


def test_a_natural_mask_is_scored_on_the_rows_that_it_is_said_to_hide(masked, tmp_path):
    """The public mean of a class shows the visible half of a private one: only there is it any good."""
    outcome = {}
    for hidden in ("[]", "[0.5, 1.0]"):
        out = tmp_path / hidden
        sets = [*SMALL, TBI, "audit.seeds=[0]", 'audit.metrics=["ssim_private"]', *masked]
        audit(load("pli-digits", sets=[*sets, f"data.domains.hidden={hidden}"]), out=out, jobs=1)
        result = read_result(out / "result.json")
        assert [(f.attack, f.n) for f in result.findings] == [("tbi", 4)]
        table = next(e for e in result.exhibits if "beside every null" in e.title).data
        outcome[hidden] = float(table["rows"][0][table["columns"].index(PUBLIC)])
    assert outcome["[0.5, 1.0]"] < 0.1 < outcome["[]"], outcome
    with pytest.raises(BadScenario, match=r"data\.domains\.hidden"):
        load("pli-digits", sets=["data.domains.hidden=[0.5]"])


def test_accuracy_per_upload_of_every_party(run):
    facts = json.loads(next(run.glob("cells/*-s0/group.json")).read_text())
    clients = [r for r in facts["parties"] if r["who"] == "clients" and r["on"] == "private"]
    assert [r["round"] for r in clients] == [0, 1, 2]
    assert facts["entropies"]["clients on private data"]
    assert 0 <= facts["utility"]["value"] <= 1


def test_exhibits(run):
    exhibits = read_result(run / "result.json").exhibits
    titles = " | ".join(e.title for e in exhibits)
    for words in (
        "Accuracy of the federation",
        "The confidence gap",
        "quality per round",
        "beside every null",
    ):
        assert words in titles
    pictures = next(e for e in exhibits if e.kind == "pictures")
    assert np.load(run / pictures.file)["images"].shape[:2] == (4, len(pictures.data["columns"]))


def test_quality_per_round_stands_beside_the_attack_without_uploads(run):
    exhibits = {e.title: e.data for e in read_result(run / "result.json").exhibits}
    for attack in ("pli", "tbi"):
        table = exhibits[f"{attack}: beside every null"]
        means = dict(
            zip(table["columns"], next(r for r in table["rows"] if r[0] == "ssim_private"), strict=True)
        )
        _, null = exhibits[f"{attack}: quality per round"]["series"]
        assert null["name"] == WITHOUT_UPLOADS
        assert null["y"] == pytest.approx([float(means[WITHOUT_UPLOADS])] * 2, abs=5e-4)
        assert len({means.get(OWN_PRIOR), means[PRIOR], means[WITHOUT_UPLOADS]}) == 3


def played(*sets, seed=0):
    """A federation and what its watch saw, without any attack."""
    (cell,) = cells(load("pli-digits", sets=[*SMALL, *sets]).scenarios[0])
    built = build(cell.scenario, seed=seed)
    watch = ModelMonitor(setting=built.setting, heldout=built.heldout, public=built.public)
    log = Log(terms=built.setting.terms, keep=built.keep)
    protocol = registry.load("protocols", built.setting.terms.protocol)()
    recorder = BothSides(log=log, rounds=built.attacked, watch=watch)
    protocol.play(built.setting, recorder=recorder, rng=built.rng.child("federation"))
    return built, watch, log


MODELS = 'federation.client_models=[{name="shallow_cnn"}, {name="mlp", hidden=32}]'


def test_clients_with_different_models_all_learn():
    built, watch, log = played(MODELS)
    names = [built.setting.architectures[client].name for client in (0, 1)]
    assert names == ["shallow_cnn", "mlp"]
    sizes = [{n: t.shape for n, t in built.setting.build(a).state_dict().items()}
             for a in built.setting.architectures.values()]  # fmt: skip
    assert sizes[0] != sizes[1]
    uploads = [u for r in log.transcript().rounds for u in r.updates]
    assert [(u.round, u.client) for u in uploads] == [(r, c) for r in range(3) for c in (0, 1)]
    assert all(u.tensors["logits"].isfinite().all() for u in uploads)
    for client in (0, 1):
        assert watch.right[2, client, "private"].mean() > 0.7  # two digits of its own
        assert watch.right[2, client, "public"].mean() > 0.3  # of ten


def test_an_audit_of_different_models_replays(tmp_path):
    out = tmp_path / "run"
    audit(load("pli-digits", sets=[*SMALL, MODELS, TBI, "audit.seeds=[0]"]), out=out, jobs=1)
    assert {f.attack for f in read_result(out / "result.json").findings} == {"tbi"}
    assert [row["same"] for row in replay(out, "tbi")] == [True]


def test_shifted_photos_that_are_others_than_the_private_ones(tmp_path):
    out = tmp_path / "run"
    sets = [*SMALL, TBI, "audit.seeds=[0]", "data.domains.same_photos=false"]
    audit(load("pli-digits", sets=sets), out=out, jobs=1)
    truth = read_truth(next(out.glob("cells/*/truth")))
    terms = read_transcript(next(out.glob("cells/*/transcript"))).terms
    upper = {x[:, :4].numpy().tobytes() for x in terms.public.inputs}
    private = [x[:, :4].numpy().tobytes() for x in truth.private.inputs]
    assert len(private) == 20  # of twelve images two are held out, and half of the rest is shifted
    assert not upper & set(private)
    assert {f.n for f in read_result(out / "result.json").findings} == {4}


def test_accuracy_rises_over_the_rounds_of_the_quickstart():
    _, watch, _ = played("data.domains.per_class=30", "federation.clients=1", "federation.rounds=3")
    curve = {(r["round"], r["who"], r["on"]): r["accuracy"] for r in watch.curve()}
    assert curve[3, "clients", "held-out"] > curve[0, "clients", "held-out"]
    assert curve[3, "clients", "public"] > curve[0, "clients", "public"]
    assert curve[3, "server", "public"] > curve[1, "server", "public"]


def test_accuracy_on_public_data_that_were_announced_without_labels():
    """The models know the private classes alone, so that it is measured on the public images of those."""
    built, watch, log = played("federation.protocol=dsfl", "federation.clients=1")
    assert (built.setting.terms.public.labels == -1).all()
    labels = built.public.labels
    for round in range(3):
        assert len(watch.right[round, 0, "public"]) == int((labels < 4).sum()) > 0
    assert len(watch.entropies[0, "public"]) == len(labels)
    output = log.servers[2]["logits"].argmax(1)[labels < 4]
    assert torch.equal(
        torch.tensor(watch.right[2, SERVER, "public"]), (output == labels[labels < 4]).double()
    )
    rows = [(r["round"], r["who"]) for r in watch.curve() if r["on"] == "public"]
    assert rows == [(0, "clients"), (1, "clients"), (1, "server"), (2, "clients"), (2, "server")]


def test_the_negative_control_exchanges_classes():
    private = Batch(inputs=torch.rand(4, 1, 8, 8), labels=torch.tensor([0, 1, 2, 2]))
    turned = exchange_classes(Truth(private=private, shards={}, used={}))
    assert turned.private.labels.tolist() == [1, 2, 0, 0]
