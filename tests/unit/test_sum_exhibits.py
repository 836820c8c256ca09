"""Exhibits of attacks on sums: right numbers on a case that can be counted, one chart for several sizes."""

import numpy as np
import pytest
import torch

from glasshouse.attacks.base import About, Reconstruction
from glasshouse.figures.base import (
    AttackEvidence,
    CellEvidence,
    Federation,
    GroupEvidence,
    PluginSettings,
)
from glasshouse.figures.drawing import join_exhibits
from glasshouse.figures.secure_sums import SecureSums
from glasshouse.metrics.base import ScoreContext
from glasshouse.report.exhibits import draw
from glasshouse.results.exhibits import Place
from glasshouse.rng import Rng
from glasshouse.store import write_tensors
from glasshouse.truth.record import Truth, Used
from glasshouse.wire import Batch

IMAGES = torch.rand((8, 1, 4, 4), generator=Rng.root(0).torch())


def draw_sums(tmp_path, size, *, source=None, memory=True):
    """Two clients of ``size`` examples; all but the first are claimed."""
    total = 2 * size
    shards = {0: tuple(range(size)), 1: tuple(range(size, total))}
    used = {(0, c): Used(steps=(rows,), behaviour="honest") for c, rows in shards.items()}
    truth = Truth(
        private=Batch(inputs=IMAGES[:total], labels=torch.zeros(total, dtype=torch.int64)),
        shards=shards,
        used=used,
    )
    claim = Reconstruction(
        about=About(rounds=(0,)),
        inputs=IMAGES[1:total],
        labels=None,
        confidence=torch.ones(total - 1),
        source=source,
    )
    folder = tmp_path / f"{size}"
    (folder / "adversary").mkdir(parents=True)
    tensors = {"thresholds": torch.linspace(0, 1, 16, dtype=torch.float64), "brightness": torch.rand(50)}
    if memory:
        write_tensors(folder / "adversary" / "memory.safetensors", tensors)
    federation = Federation(folder=folder, active="scale_mia")
    group = GroupEvidence(
        federation=federation, claims=(claim,), truth=truth, context=ScoreContext(), rng=Rng.root(0)
    )
    attack = AttackEvidence(
        key="00-scale_mia",
        label="scale_mia",
        settings=PluginSettings(name="scale_mia"),
        attack=None,
        groups=(group,),
    )
    axes = {"data.examples": size, "federation.batch_size": size}
    place = Place(scenario="toy", axes=axes, run=tmp_path)
    return list(SecureSums().draw(CellEvidence(place=place, attacks=(attack,), federations=(federation,))))


def test_counts_what_can_be_counted_and_joins_the_sizes(tmp_path):
    joined = join_exhibits([e for size in (2, 4) for e in draw_sums(tmp_path, size)])
    assert [e.kind for e in joined].count("lines") == [e.kind for e in joined].count("table") == 1
    (chart,) = [e for e in joined if e.kind == "lines"]
    once, paper, alone = chart.data["series"]
    assert (once["x"], once["y"]) == ([4, 8], [0.75, 0.875])
    assert paper["y"] == once["y"]
    assert alone["y"][alone["x"].index(8)] == pytest.approx((1 - 1 / 16) ** 7)
    assert all(np.diff(alone["x"]) > 0)
    (table,) = [e for e in joined if e.kind == "table"]
    assert [row[2] for row in table.data["rows"]] == [4, 8]
    assert table.data["rows"][0][4].startswith("0.750")
    for exhibit in joined:
        draw(exhibit)


def test_bins_of_one_client_hold_its_examples_alone(tmp_path):
    result = draw_sums(tmp_path, 2, source=torch.zeros(3, dtype=torch.int64))
    (chart,) = [e for e in result if e.kind == "lines"]
    alone = chart.data["series"][2]
    assert alone["y"][-1] == pytest.approx(1 - 1 / 16)


def test_an_attack_without_bins_shows_nothing(tmp_path):
    assert draw_sums(tmp_path, 2, memory=False) == []
