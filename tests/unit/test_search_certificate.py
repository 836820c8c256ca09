"""Was the search finished? Called so where it was, and only there; what the judge learns stays with it."""

from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from report_specimen import finding

from glasshouse.attacks.base import About, ClassRepresentatives, Reconstruction
from glasshouse.attacks.inversion.dlg import DLG
from glasshouse.attacks.inversion.inverting_gradients import InvertingGradients
from glasshouse.attacks.objective import SearchedLoss, collect_losses, record_loss, thinned
from glasshouse.attacks.parts.search.adam import Descent
from glasshouse.audit.attacking import call
from glasshouse.audit.attacking.call import AttackTask, run_attack, units_of
from glasshouse.audit.attacking.needs import threat_of
from glasshouse.audit.scoring.judging import certificate
from glasshouse.audit.scoring.judging.certificate import certificate_of, certify_together
from glasshouse.audit.scoring.judging.decoys import DECOYS, decoys_for, true_orders
from glasshouse.audit.scoring.judging.policy import state_of_gain
from glasshouse.audit.simulation.group import Group, simulate
from glasshouse.figures.searches import Searches
from glasshouse.results.records import Control
from glasshouse.results.strength import Search
from glasshouse.rng import Rng
from glasshouse.scenario.load import from_dict, write_resolved
from glasshouse.scenario.table import Plugin
from glasshouse.testing.toys import toy
from glasshouse.truth.record import Truth, Used
from glasshouse.wire import Batch

VICTIMS = 10


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """10 clients with a digit each, simulated once."""
    folder = tmp_path_factory.mktemp("federation")
    scenario = from_dict(
        {
            "name": "certified",
            "data": {"auxiliary": 60, "heldout": 20},
            "model": {"name": "mlp", "hidden": 16},
            "federation": {"clients": VICTIMS},
            "attacks": [{"name": "inverting_gradients"}],
            "audit": {"distractors": 9, "utility": False},
        }
    )
    write_resolved(scenario, folder / "scenario.toml")
    simulate(Group(folder=str(folder), seed=0))
    return folder, scenario


def tasks(federation, out: Path, victims: int = VICTIMS, *, iterations, **arguments) -> list[AttackTask]:
    folder, scenario = federation
    settings = {"search": {"restarts": 1, "iterations": iterations}, **arguments}
    units = units_of(InvertingGradients(), folder, victims=victims, attacked=frozenset({0}))
    return [
        AttackTask(
            folder=str(folder),
            out=str(out / unit.name),
            plugin=Plugin.model_validate({"name": "inverting_gradients", **settings}),
            threat=threat_of(scenario),
            attack_seed=0,
            unit=unit,
        )
        for unit in units
    ]


def certify(task: AttackTask):
    (answer,) = certify_together((task,))
    return answer


def certified(federation, out: Path, **arguments) -> list[Search]:
    piece = tuple(tasks(federation, out, **arguments))
    for task in piece:
        run_attack(task)
    return [row for _, rows in certify_together(piece) for row in rows]


def test_a_search_cut_short_is_unfinished_10_of_10(federation, tmp_path):
    rows = certified(federation, tmp_path, iterations=2)
    assert [row.finished for row in rows] == [False] * VICTIMS
    assert all(row.truth < row.loss for row in rows)
    assert rows[3].name == "round 0, client 3"


def test_a_search_below_the_truth_is_finished_10_of_10(federation, tmp_path):
    """So strong a prior prefers grey images to digits, and finds them."""
    rows = certified(federation, tmp_path, iterations=60, tv=20.0)
    assert [row.finished for row in rows] == [True] * VICTIMS


def test_claims_are_filed_before_the_truth_is_read_and_stay_as_they_are(federation, tmp_path, monkeypatch):
    (task,) = tasks(federation, tmp_path, victims=1, iterations=2)
    with pytest.raises(Exception, match=r"claims\.json"):
        certify(task)  # nothing was filed yet
    run_attack(task)
    before = {p: p.read_bytes() for p in Path(task.out).iterdir()}
    order = []
    read, answer = certificate.read_truth, certificate.sealed

    @contextmanager
    def watched(*given, **options):
        with answer(*given, **options) as judge:
            yield replace(judge, ask=lambda question: order.append(question[0]) or judge.ask(question))

    monkeypatch.setattr(certificate, "read_truth", lambda path: order.append("truth") or read(path))
    monkeypatch.setattr(certificate, "sealed", watched)
    certify(task)
    assert order == ["build", "truth", "loss"]
    assert {p: p.read_bytes() for p in Path(task.out).iterdir()} == before


class Remembers:
    """Keeps every image that its loss is called with, in memory and in files."""

    seen: list[torch.Tensor] = []  # noqa: RUF012 - that it is shared is the point

    def __init__(self, *places):
        self.honest = InvertingGradients(search=Descent(iterations=2, restarts=1))
        self.needs, self.places = self.honest.needs, places

    def objective(self, view, about, *, rng):
        searched = self.honest.objective(view, about, rng=rng)

        def loss(pixels, labels):
            self.seen.append(pixels)
            for place in self.places:
                with suppress(RuntimeError):
                    torch.save(pixels, place)
            return searched.loss(pixels, labels)

        return replace(searched, loss=loss)

    def run(self, view, *, rng):
        return self.honest.run(view, rng=rng)


def use(monkeypatch, attack):
    for module in (call, certificate):
        monkeypatch.setattr(module, "attack_of", lambda plugin: attack)


def test_what_a_loss_remembers_ends_with_its_process(federation, tmp_path, monkeypatch):
    """Neither its memory nor any file that it writes is there for the next run."""
    (task,) = tasks(federation, tmp_path, victims=1, iterations=2)
    home = Path.home() / "glasshouse-test-leak.pt"
    places = [
        tmp_path / "leak.pt",
        home,
        Path.cwd() / "leak.pt",
        Path("/dev/shm/leak.pt"),
        Path(task.folder) / "x",
    ]
    use(monkeypatch, Remembers(*places))
    run_attack(task)
    (row,) = certify(task)[1]
    assert row.reason == ""
    assert len(row.decoys) == DECOYS
    assert Remembers.seen == []
    assert not any(place.exists() for place in places)


def test_a_loss_that_fails_leaves_the_search_unfinished(federation, tmp_path, monkeypatch):
    (task,) = tasks(federation, tmp_path, victims=1, iterations=2)
    run_attack(task)
    monkeypatch.setattr(InvertingGradients, "objective", lambda *_, **__: 1 / 0)
    (row,) = certify(task)[1]
    assert "ZeroDivisionError" in row.reason
    assert not row.finished
    assert "could not be evaluated" in certificate_of([row]).missing


class Declares(Remembers):
    """Works as it should, and declares another loss than it minimises."""

    def __init__(self, loss, noise=1e-6):
        super().__init__()
        self.loss, self.noise = loss, noise

    def objective(self, view, about, *, rng):
        honest = self.honest.objective(view, about, rng=rng)
        return SearchedLoss(loss=lambda x, y: self.loss(honest, x, y), noise=self.noise)


asked = iter(range(10**6))
WORTHLESS = {
    "constant": Declares(lambda honest, x, y: torch.zeros(len(x))),
    "NaN": Declares(lambda honest, x, y: torch.full((len(x),), torch.nan)),
    "infinite": Declares(lambda honest, x, y: torch.full((len(x),), -torch.inf)),
    "raises": Declares(lambda honest, x, y: torch.zeros(len(x)) / (1 // 0)),
    "of labels alone": Declares(lambda honest, x, y: (y == 3).float().mean(1)),
    "of nothing": Declares(lambda honest, x, y: x.flatten(1).sum(1).sin()),
    "another each time": Declares(lambda honest, x, y: torch.tensor([float(next(asked))])),
    "huge noise": Declares(lambda honest, x, y: honest.loss(x, y), noise=1e9),
    "negative noise": Declares(lambda honest, x, y: honest.loss(x, y), noise=-1.0),
}


@pytest.mark.parametrize("kind", WORTHLESS)
def test_a_loss_that_could_not_have_failed_certifies_nothing(federation, tmp_path, monkeypatch, kind):
    some = tasks(federation, tmp_path, victims=4, iterations=2)
    use(monkeypatch, WORTHLESS[kind])
    for task in some:
        run_attack(task)
    rows = [row for _, each in certify_together(tuple(some)) for row in each]
    assert len(rows) == 4
    assert certificate_of(rows).missing


def test_an_honest_loss_tells_the_truth_from_decoys(federation, tmp_path):
    rows = certified(federation, tmp_path, victims=4, iterations=2)
    assert [row.rank for row in rows] == [0] * 4
    assert certificate_of(rows).told_p < 0.003
    assert "4 of 4 searches stopped above" in certificate_of(rows).missing
    assert certificate_of([]) is None


def test_a_certificate_that_holds_misses_nothing():
    good = row(loss=0.5, decoys=(1.0,) * DECOYS, curve=((0, 2.0), (50, 0.5), (100, 0.5)))
    assert certificate_of([good]).missing == ""
    assert "last half" in certificate_of([replace(good, curve=((0, 2.0), (50, 1.0), (100, 0.5)))]).missing
    assert "does not tell" in certificate_of([replace(good, decoys=(0.5,) * DECOYS)]).missing
    assert "does not tell" in certificate_of([replace(good, decoys=())]).missing
    assert "stopped above" in certificate_of([replace(good, reproduced=False)]).missing


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("arguments", [{}, {"adaptive": True}])
def test_units_of_a_round_get_the_certificates_of_each_alone(
    federation, tmp_path, monkeypatch, arguments, rows
):
    """Whether they shared a batch or not: their model is prepared once."""
    monkeypatch.setattr(call, "ROWS", rows)
    piece = tuple(tasks(federation, tmp_path, victims=3, iterations=2, **arguments))
    for task in piece:
        run_attack(task)
    alone = [certify(task) for task in piece]
    # One by one it would fail now: all losses were built together.
    monkeypatch.setattr(certificate, "call_on", once(certificate.call_on))
    assert certify_together(piece) == alone


def once(work):
    """``work`` whose second call in a process that builds losses fails."""
    calls = []

    def wrapped(device, call, *, subject):
        calls.extend([subject] if subject.startswith("search") else [])
        return work(
            device, call if len(calls) == 1 or not subject.startswith("search") else None, subject=subject
        )

    return wrapped


def test_units_of_which_one_fails_are_certified_one_by_one(federation, tmp_path, monkeypatch):
    piece = tuple(tasks(federation, tmp_path, victims=3, iterations=2))
    for task in piece:
        run_attack(task)
    alone = [certify(task) for task in piece]
    plain = InvertingGradients.objectives

    def fails(self, views, *, rngs):
        return plain(self, views, rngs=rngs) if len(views) == 1 else 1 / 0

    monkeypatch.setattr(InvertingGradients, "objectives", fails)
    assert certify_together(piece) == alone


def truth_of(images: torch.Tensor, labels: list[int]) -> Truth:
    rows = tuple(range(len(images)))
    return Truth(
        private=Batch(inputs=images, labels=torch.tensor(labels)),
        shards={0: rows},
        used={(0, 0): Used(steps=(rows,), behaviour="honest")},
    )


def claim(images: torch.Tensor, labels: list[int] | None) -> Reconstruction:
    return Reconstruction(
        about=About(rounds=(0,), client=0),
        inputs=images,
        labels=None if labels is None else torch.tensor(labels),
        confidence=torch.zeros(len(images)),
    )


def orders(one, truth):
    return [(x.flatten().tolist(), y.tolist()) for x, y in true_orders(one, truth)]


def test_the_truth_takes_the_places_of_its_labels_and_then_of_what_is_alike():
    images = torch.tensor([0.0, 0.5, 1.0]).reshape(3, 1, 1, 1)
    truth = truth_of(images, [7, 8, 8])
    inverted = claim(1 - images, [8, 7, 8])  # 1.0 for the second image, .5 for the first, 0.0 for the third
    assert orders(inverted, truth)[0] == ([1.0, 0.0, 0.5], [8, 7, 8])
    assert orders(inverted, truth)[1] == ([0.0, 0.5, 1.0], [7, 8, 8])


def test_a_claim_with_wrong_labels_meets_the_truth_under_its_own_labels_too():
    """True images under wrong labels do not fit an update: a claim that is below that is not finished."""
    images = torch.tensor([0.0, 0.5]).reshape(2, 1, 1, 1)
    truth = truth_of(images, [7, 8])
    wrong = claim(images + 0.1, [7, 7])
    assert orders(wrong, truth) == [([0.0, 0.5], [7, 7]), ([0.0, 0.5], [7, 8])]
    # So do the decoys: each is asked about under both labellings.
    heldout = Batch(inputs=torch.full((3, 1, 1, 1), 0.75), labels=torch.tensor([7, 8, 8]))
    decoys = decoys_for(wrong, truth, heldout)
    assert len(decoys) == DECOYS
    assert [labels.tolist() for _, labels in decoys[0]] == [[7, 7], [7, 8]]


def test_decoys_have_the_labels_of_the_truth_and_stand_where_it_does():
    truth = truth_of(torch.tensor([0.25]).reshape(1, 1, 1, 1), [3])
    more = claim(torch.tensor([0.9, 0.2]).reshape(2, 1, 1, 1), None)
    heldout = Batch(inputs=torch.arange(4.0).reshape(4, 1, 1, 1), labels=torch.tensor([1, 3, 2, 1]))
    for ((examples, _),) in decoys_for(more, truth, heldout):
        assert examples[0].item() == pytest.approx(0.9)  # no true image fits here
    one = claim(torch.tensor([0.2]).reshape(1, 1, 1, 1), [3])
    assert {examples.item() for ((examples, _),) in decoys_for(one, truth, heldout)} == {1.0}
    assert decoys_for(one, truth, None) == []  # nobody else is there


def test_places_that_no_true_image_fits_keep_the_claim():
    truth = truth_of(torch.tensor([0.25]).reshape(1, 1, 1, 1), [3])
    more = claim(torch.tensor([0.9, 0.2]).reshape(2, 1, 1, 1), None)
    assert orders(more, truth) == [([pytest.approx(0.9), 0.25], [-1, -1])]


def test_class_representatives_meet_the_means_of_their_classes():
    truth = truth_of(torch.tensor([0.0, 1.0, 0.5]).reshape(3, 1, 1, 1), [1, 1, 0])
    labels = torch.tensor([0, 1])
    one = ClassRepresentatives(
        about=About(rounds=(0,)), inputs=torch.zeros(2, 1, 1, 1), labels=labels, source=labels
    )
    assert orders(one, truth) == [([0.5, 0.5], [0, 1])]


@pytest.mark.parametrize("attack", [InvertingGradients(adaptive=True), DLG()])
def test_losses_are_deterministic_and_smallest_at_the_truth(attack):
    played = toy(examples=2, batch_size=2)
    view, rng = played.view(client=0), Rng.root(3)
    batch = played.setting.shard(0)
    searched = attack.objective(view, About(rounds=(0,), client=0), rng=rng)
    other = torch.rand(batch.inputs.shape, generator=torch.Generator().manual_seed(0))
    both = torch.stack([batch.inputs, other])
    losses = searched.loss(both, batch.labels.expand(2, -1))
    assert torch.equal(losses, searched.loss(both, batch.labels.expand(2, -1)))
    assert losses.shape == (2,)
    assert losses[0] < losses[1]


def row_at(one, truth, loss) -> Search:
    """The row of a claim whose loss is ``loss``, asked in the process itself."""

    def ask(question):
        return {"losses": [loss(*point) for point in question[3]], "noise": 0.0}, {}

    rows = certificate._Rows(piece=(), claims={}, judge=SimpleNamespace(ask=ask), generative=False)
    rows.__dict__.update(truth=truth, heldout=None)
    return rows._row("unit", 0, one)


def test_of_two_answers_about_a_claim_the_worse_counts():
    images = torch.tensor([0.0, 0.5]).reshape(2, 1, 1, 1)
    mine, answers = claim(images + 0.1, [7, 8]), iter([1.0, 3.0])

    def loss(x, labels):
        return next(answers) if torch.equal(x, mine.inputs) else 2.0

    found = row_at(mine, truth_of(images, [7, 8]), loss)
    assert (found.loss, found.truth, found.reproduced, found.finished) == (3.0, 2.0, False, False)


def test_of_two_labellings_the_truth_has_the_smaller_loss():
    """True images under the claim's wrong labels fit no update: to be below that is not to be finished."""
    images = torch.tensor([0.0, 0.5]).reshape(2, 1, 1, 1)
    mine = claim(images + 0.1, [7, 7])

    def loss(x, labels):
        if torch.equal(x, mine.inputs):
            return 5.0
        return 1.0 if labels.tolist() == [7, 8] else 9.0

    found = row_at(mine, truth_of(images, [7, 8]), loss)
    assert (found.truth, found.reproduced, found.finished) == (1.0, True, False)


def row(**changes) -> Search:
    return Search(**{"name": "round 0", "loss": 1.0, "truth": 0.5, "noise": 0.1, **changes})


def test_a_generator_s_search_is_measured_at_the_truth_s_projection():
    assert not row().finished
    assert row(projected=0.95).finished  # above the truth, which the generator cannot show
    assert not row(projected=0.8).finished


def test_the_report_draws_every_kind_of_claim_that_is_certified():
    assert {claim.kind for claim in Searches.reads} == certificate.SEARCHED


def test_a_curve_that_still_falls_says_so():
    assert row(curve=((0, 2.0), (40, 1.2), (99, 0.9))).falling
    assert not row(curve=((0, 2.0), (40, 1.0), (99, 0.999))).falling
    assert not row(curve=((0, 2.0), (40, 0.15), (99, 0.1))).falling  # within the noise
    assert not row().falling


def test_a_tolerance_never_reaches_from_the_truth_to_a_decoy():
    assert row(noise=1e9, decoys=(2.5,) * DECOYS).tolerance == pytest.approx(0.1)
    assert row(noise=1e9, decoys=(0.4,) * DECOYS).tolerance == 0
    assert row(noise=1e-3, decoys=(2.5,) * DECOYS).tolerance == 1e-3


def test_a_limit_is_undecided_while_a_search_is_unfinished():
    passed = Control(
        positive=9.0, positive_low=8.0, negative=0.0, negative_low=-1.0, passed=True, setting="", n=8
    )
    within = finding(gain=0.0, half=0.5, control=passed, verdict="no leak found")
    assert state_of_gain(within, 1.0)[0] == "holds"
    state, why = state_of_gain(replace(within, unfinished=3), 1.0)
    assert (state, why) == ("undecided", "the search was not finished for 3 victims")


def test_curves_are_collected_where_somebody_asks():
    record_loss(0, torch.tensor(9.0))  # nobody does
    with collect_losses() as points:
        for i in range(200):
            record_loss(i, torch.tensor([2.0, 1.0]))
    assert points[0] == (0, 1.0)
    assert len(thinned(points)) <= 64
    assert thinned([]) == ()
