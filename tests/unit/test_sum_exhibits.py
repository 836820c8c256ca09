"""Exhibits of attacks on sums: right numbers on a case that can be counted, one chart for several sizes."""

import numpy as np
import pytest
import torch

from glasshouse.attacks.base import About, Reconstruction
from glasshouse.audit.attacking.claims import Outcome
from glasshouse.audit.figures.sums import merged, sum_exhibits
from glasshouse.audit.scoring.judge import Judge
from glasshouse.metrics.base import ScoreContext
from glasshouse.report.exhibits import draw
from glasshouse.rng import Rng
from glasshouse.scenario.axes import cells
from glasshouse.scenario.load import from_dict
from glasshouse.store import write_tensors
from glasshouse.truth.record import Truth, Used
from glasshouse.wire import Batch

IMAGES = torch.rand((8, 1, 4, 4), generator=Rng.root(0).torch())


def scenario():
    return from_dict(
        {
            "name": "toy",
            "attacks": [{"name": "scale_mia"}],
            "axes_zipped": [{"data.examples": [2, 4], "federation.batch_size": [2, 4]}],
        }
    )


def settled(tmp_path, cell, size, *, source=None, memory=True):
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
    judge = Judge(truth=truth, context=ScoreContext(), auxiliary=None, rng=Rng.root(0))
    outcomes = {str(folder): [Outcome(claims=(claim,))]}
    return sum_exhibits(cell, "scale_mia", outcomes, {str(folder): judge})


def test_counts_what_can_be_counted_and_joins_the_sizes(tmp_path):
    both = [
        e for cell, size in zip(cells(scenario()), (2, 4), strict=True) for e in settled(tmp_path, cell, size)
    ]
    joined = merged(both)
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
    made = settled(tmp_path, cells(scenario())[0], 2, source=torch.zeros(3, dtype=torch.int64))
    (chart,) = [e for e in made if e.kind == "lines"]
    alone = chart.data["series"][2]
    assert alone["y"][-1] == pytest.approx(1 - 1 / 16)


def test_an_attack_without_bins_shows_nothing(tmp_path):
    assert settled(tmp_path, cells(scenario())[0], 2, memory=False) == []
