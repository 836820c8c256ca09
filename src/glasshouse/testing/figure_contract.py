"""What every figure promises. Subclass as ``TestMyFigure``, provide ``figure`` and ``cell``."""

import dataclasses

import pytest
import torch

from glasshouse.figures.base import CellEvidence, Figure, RunFigure, has_any
from glasshouse.registry import Card
from glasshouse.results.exhibits import check_exhibit
from glasshouse.results.records import Exhibit


class FigureContract:
    """Promises of a figure."""

    @pytest.fixture
    def figure(self) -> Figure | RunFigure:
        """The figure under test."""
        raise NotImplementedError

    @pytest.fixture
    def cell(self) -> CellEvidence:
        """A cell of which it has something to show."""
        raise NotImplementedError

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
        """The card has a summary, and the cell has what the figure reads."""
        assert isinstance(figure.card, Card)
        assert figure.card.summary
        assert has_any(cell, figure.reads)

    def test_it_draws_valid_exhibits_of_this_scenario(
        self, figure: Figure | RunFigure, cell: CellEvidence
    ) -> None:
        """At least one exhibit; each can be written and drawn."""
        exhibits = self._draw(figure, cell)
        assert exhibits
        for exhibit in exhibits:
            check_exhibit(exhibit, subject="figure under test")
            assert exhibit.scenario == cell.place.scenario

    def test_it_draws_the_same_twice_and_leaves_global_randomness_alone(
        self, figure: Figure | RunFigure, cell: CellEvidence
    ) -> None:
        """What a figure draws at random comes from the evidence's own stream."""
        before = torch.get_rng_state()
        assert self._draw(figure, cell) == self._draw(figure, cell)
        assert torch.equal(before, torch.get_rng_state())

    def test_it_shows_nothing_where_there_is_nothing(
        self, figure: Figure | RunFigure, cell: CellEvidence
    ) -> None:
        """A cell in which no attack made a claim and no federation ran."""
        empty = dataclasses.replace(cell, attacks=(), federations=())
        assert self._draw(figure, empty) == []
