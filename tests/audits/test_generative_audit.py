"""The judge's side of an attack with a generator: its null, its ceiling, what is shown; end to end."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from glasshouse.attacks.base import About, PriorSamples
from glasshouse.audit.run import audit
from glasshouse.audit.scoring.nulls import GENERATOR, NullBook
from glasshouse.figures import generator_scale
from glasshouse.metrics.base import ScoreContext
from glasshouse.metrics.reconstruction import Psnr
from glasshouse.modalities.image import Image
from glasshouse.models import nearest
from glasshouse.models.nearest import invert_generator, nearest_images
from glasshouse.rng import Rng
from glasshouse.scenario.load import load
from glasshouse.wire import Batch

RNG = Rng.root(0)


def logistic(latent, labels):
    """Every latent entry is a pixel."""
    return latent.sigmoid().reshape(-1, 1, 2, 2)


def flat(value, count=12):
    return Batch(inputs=torch.full((count, 1, 2, 2), value), labels=torch.zeros(count).long())


def test_a_perfect_generator_has_a_perfect_ceiling():
    images = torch.rand(3, 1, 2, 2, generator=RNG.torch())
    tensor = invert_generator(logistic, images, torch.zeros(3).long(), latent=4)
    assert float((tensor - images).abs().max()) < 0.01


def test_the_ceiling_of_a_generator_that_knows_one_image_is_that_image():
    def stuck(latent, labels):
        return 0 * logistic(latent, labels) + 0.25

    tensor = invert_generator(stuck, torch.ones(2, 1, 2, 2), torch.zeros(2).long(), latent=4)
    assert tensor.unique().tolist() == [0.25]


def test_what_a_generator_shows_of_the_same_images_is_searched_once_in_a_run(tmp_path, monkeypatch):
    """In batches, and a cell that has other images, or another generator, searches for itself."""
    monkeypatch.setattr(nearest, "STEPS", 2)
    monkeypatch.setattr(nearest, "TOGETHER", 2)
    calls = []

    class Linear(torch.nn.Linear):
        def forward(self, latent, labels):
            calls.append(len(labels))
            return super().forward(latent).reshape(-1, 1, 2, 2)

    def ask(prior, images):
        return nearest_images(prior, images, torch.zeros(len(images)).long(), latent=4, run=tmp_path)

    prior, images = Linear(4, 4), torch.rand(3, 1, 2, 2, generator=RNG.torch())
    first = ask(prior, images)
    assert calls == [8, 8, 4, 4]
    assert torch.equal(first, invert_generator(prior, images, torch.zeros(3).long(), latent=4))
    del calls[:]
    assert torch.equal(ask(prior, images), first)
    assert not calls
    ask(prior, images[1:])
    ask(Linear(4, 4), images[1:])
    assert calls == [8, 8, 8, 8]


def test_draws_become_the_quoted_null_only_where_they_are_the_strongest():
    """Victims are bright: so are the generator's images, or they are not."""
    auxiliary = flat(0.9)
    auxiliary.inputs[::2] = 0.1  # no constant image is right about both halves
    metric = Psnr()

    def book(known, draws, **changes):
        modality = Image(size=tuple(known.inputs.shape[1:]))
        return NullBook(
            modality=modality, auxiliary=known, context=ScoreContext(), rng=RNG, draws=draws, **changes
        )

    assert book(auxiliary, flat(2.0)).choose(metric, 1, "domain", RNG) != GENERATOR
    only = book(flat(0.9), flat(0.9), among=(GENERATOR,))
    assert only.choose(metric, 1, "domain", RNG) == GENERATOR
    score = book(auxiliary, flat(0.5)).average(metric, GENERATOR, flat(0.4, 1), RNG)
    assert score == pytest.approx(20.0, abs=1e-4)


def test_the_best_draw_by_label_is_the_one_nearest_to_the_label_s_mean():
    draws = PriorSamples(
        about=About(rounds=(0,)),
        inputs=torch.tensor([0.0, 0.7, 1.0]).reshape(3, 1, 1, 1),
        labels=torch.tensor([1, 1, 1]),
    )
    auxiliary = Batch(
        inputs=torch.tensor([0.0, 0.5, 0.9]).reshape(3, 1, 1, 1), labels=torch.tensor([0, 1, 1])
    )
    assert generator_scale._by_label(draws, auxiliary, 1).tolist() == [[[[pytest.approx(0.7)]]]]


def test_another_s_update_is_one_of_another_class():
    truths = [flat(0.0, 1), flat(0.0, 1), Batch(inputs=torch.ones(1, 1, 2, 2), labels=torch.tensor([3]))]
    items = [torch.full((1, 1, 2, 2), v) for v in (0.1, 0.2, 0.3)]
    tensors = generator_scale.of_another(items, truths)
    assert tensors is not None
    assert [float(t.mean()) for t in tensors] == pytest.approx([0.3, 0.3, 0.1])
    assert generator_scale.of_another(items[:2], truths[:2]) is None


def test_the_share_of_the_ceiling_is_of_the_room_above_the_strongest_null():
    def scores(*values):
        return [np.array([v]) for v in values]

    null, ceiling = scores(1.0, 2.0, 3.0), scores(5.0, 6.0, 7.0)
    share = generator_scale._share
    assert share(scores(2.0, 3.0, 4.0), null, ceiling, 1, rng=RNG) == "0.25 [0.25, 0.25]"
    assert share(scores(2.0, 3.0, 4.0), ceiling, null, -1, rng=RNG) == "0.75 [0.75, 0.75]"
    assert share(ceiling, ceiling, null, 1, rng=RNG) == "no room"
    assert share(scores(2.0, 2.0), scores(1.0, 2.0), scores(5.0, 1.5), 1, rng=RNG) == "0.29"
    wide = share(scores(0.0, 3.0, 6.0), null, ceiling, 1, rng=RNG)
    low, high = (float(v) for v in wide.split("[")[1][:-1].split(","))
    assert low < 0.25 < high


@pytest.mark.parametrize("rounds", [1, 2])
def test_an_audit_with_ggl_shows_its_detector_samples_and_scale(rounds, tmp_path, monkeypatch):
    """In two rounds a client trains on the same data: two claims, and one victim."""
    monkeypatch.setenv("GLASSHOUSE_CACHE", str(tmp_path / "cache"))
    suite = load(
        "quickstart-ggl",
        [
            "defenses=[]", 'audit.metrics=["psnr"]', f"audit.victims={2 * rounds}", "federation.clients=2",
            "audit.controls=false", "attacks.0.training.steps=5", "attacks.0.search.evaluations=4",
            "attacks.0.search.population=4", f"federation.rounds={rounds}",
            f"audit.rounds={list(range(rounds))}",
        ],
    )  # fmt: skip
    result = audit(suite, out=tmp_path / "run", jobs=1)
    (finding,) = result.findings
    assert finding.n == 2
    assert [search.reason for search in finding.searches] == [""] * 2 * rounds
    titles = [e.title for e in result.exhibits]
    assert sum("which defence it sees" in t for t in titles) == 1
    assert sum("samples of its generator" in t for t in titles) == 1
    (scale,) = [e for e in result.exhibits if "lower and upper bounds" in e.title]
    (row,) = scale.data["rows"]
    assert len(row) == len(scale.data["columns"]) == 10
    nulls = [float(v) for v in row[1:5] if v]
    assert float(row[9].split()[0]) == pytest.approx(float(row[5]) - max(nulls), abs=0.06)
    assert float(row[8].split()[0]) == pytest.approx(float(row[5]) - float(row[2]), abs=0.06)  # rounded
    assert float(row[6]) > float(row[5])  # nothing that a search finds is nearer than the ceiling
    (lines,) = [e for e in result.exhibits if "loss around" in e.title]
    for one in lines.data["series"]:
        assert min(one["y"]) == 0
        assert one["y"][one["x"].index(0.0)] == 0  # nothing was done to the update: the truth is the minimum
    first, second = (one["y"] for one in lines.data["series"])
    assert first == second  # and the detector saw it
    (detector,) = [e for e in result.exhibits if "which defence" in e.title]
    assert detector.data["rows"] == [["none", str(2 * rounds), "yes"]]
    assert json.loads(Path(tmp_path / "run" / "result.json").read_text())["exhibits"]
