"""Contract tests for figures. Subclass as ``TestMyFigure`` and provide the fixture ``figure``."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from glasshouse.attacks.base import About, Claim, Reconstruction
from glasshouse.figures.base import (
    AttackEvidence,
    CellEvidence,
    Federation,
    Figure,
    GroupEvidence,
    PluginSettings,
    RunFigure,
    has_any,
)
from glasshouse.metrics.base import ScoreContext
from glasshouse.registry import Card
from glasshouse.results.exhibits import Place, check_exhibit
from glasshouse.results.records import Exhibit
from glasshouse.rng import Rng
from glasshouse.testing.fixtures import to_provide
from glasshouse.truth.record import Truth, Used
from glasshouse.wire import Batch

__all__ = ["FigureContract", "toy_cell"]


def toy_cell(run: Path, claims: Sequence[Claim] = ()) -> CellEvidence:
    """A cell with one attack on one federation, for testing a figure.

    Args:
        run: an empty folder; a folder ``truth`` is created in it.
        claims: claims of the attack; by default the four private images of client 0 in round 0, in reverse
            order, with decreasing confidence.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     cell = toy_cell(Path(folder))
        >>> cell.attacks[0].label, len(cell.attacks[0].of(Reconstruction)[0].inputs)
        ('Mine', 4)
    """
    (run / "truth").mkdir()
    images = torch.rand((4, 1, 4, 4), generator=Rng.root(0).torch())
    default = Reconstruction(
        about=About(rounds=(0,), client=0),
        inputs=images.flip(0),
        labels=torch.arange(4),
        confidence=torch.tensor([4.0, 3.0, 2.0, 1.0]),
    )
    federation = Federation(
        folder=run,
        rounds=3,
        curve=((0, 0.1), (1, 0.5)),
        accuracy=0.75,
        entropies={"clients": (0.5, 0.1)},
    )
    truth = Truth(
        private=Batch(inputs=images, labels=torch.arange(4)),
        shards={0: (0, 1, 2, 3)},
        used={(0, 0): Used(steps=((0, 1, 2, 3),), behaviour="honest")},
    )
    group = GroupEvidence(
        federation=federation,
        claims=tuple(claims) or (default,),
        truth=truth,
        context=ScoreContext(),
        rng=Rng.root(0),
    )
    attack = AttackEvidence(
        key="00-mine", label="Mine", settings=PluginSettings(name="mine"), attack=None, groups=(group,)
    )
    place = Place(scenario="toy", axes={"federation.clients": 2}, run=run)
    return CellEvidence(place=place, attacks=(attack,), federations=(federation,))


class FigureContract:
    """Contract of a figure."""

    figure = to_provide(Figure | RunFigure)
    """The figure under test."""

    @pytest.fixture
    def cell(self, tmp_path: Path) -> CellEvidence:
        """A cell that the figure draws; override it if the figure does not show reconstructions."""
        return toy_cell(tmp_path)

    def _draw(self, figure: Figure | RunFigure, cell: CellEvidence) -> list[Exhibit]:
        exhibits: list[Exhibit] = []
        if isinstance(figure, Figure):
            exhibits += figure.draw(cell)
        if isinstance(figure, RunFigure):
            exhibits += figure.draw_run(list(figure.collect(cell)))
        return exhibits

    def test_it_describes_itself_and_what_it_reads(
        self, figure: Figure | RunFigure, cell: CellEvidence
    ) -> None:
        """The card has a summary, and the cell contains what the figure reads."""
        assert isinstance(figure.card, Card)
        assert figure.card.summary
        assert has_any(cell, figure.reads)

    def test_it_draws_valid_exhibits_of_this_scenario(
        self, figure: Figure | RunFigure, cell: CellEvidence
    ) -> None:
        """At least one exhibit; each is valid."""
        exhibits = self._draw(figure, cell)
        assert exhibits
        for exhibit in exhibits:
            check_exhibit(exhibit, subject="figure under test")
            assert exhibit.scenario == cell.place.scenario

    def test_it_draws_the_same_twice_and_leaves_global_randomness_alone(
        self, figure: Figure | RunFigure, cell: CellEvidence
    ) -> None:
        """Random numbers of a figure come from the evidence's own stream."""
        before = torch.get_rng_state()
        assert self._draw(figure, cell) == self._draw(figure, cell)
        assert torch.equal(before, torch.get_rng_state())

    def test_it_shows_nothing_where_there_is_nothing(
        self, figure: Figure | RunFigure, cell: CellEvidence
    ) -> None:
        """Nothing is drawn for a cell without attacks and federations."""
        empty = dataclasses.replace(cell, attacks=(), federations=())
        assert self._draw(figure, empty) == []
