"""A finding counts examples only where each of them is a hit or a miss."""

from dataclasses import replace

import numpy as np
import pytest
import report_specimen as specimen

from glasshouse.audit.scoring.finding import _counted
from glasshouse.audit.scoring.score import ScoredMetric, join_parts
from glasshouse.metrics.reconstruction import Identification, Psnr


@pytest.mark.parametrize(
    ("metric", "values", "counted"),
    [
        (Identification(), ([1.0, 0.0], [1.0, 1.0]), (4, 3)),
        (Identification(), ([1.0, 0.5],), (None, None)),  # a share within a score is no count
        (Psnr(), ([1.0, 0.0],), (None, None)),
    ],
)
def test_hits_are_counted_where_scores_are_hits_or_misses(metric, values, counted):
    rows = tuple(np.asarray(row) for row in values)
    scored = ScoredMetric(values=rows, nulls=rows, victims=tuple(map(str, range(len(rows)))))
    finding = _counted(specimen.finding(), scored, metric)
    assert (finding.scored, finding.hits) == counted


def test_examples_that_are_scored_in_two_rounds_are_not_twice_as_many():
    def of(run: str, victim: str) -> ScoredMetric:
        rows = (np.array([1.0, 1.0]),)
        drawn = (np.full(2, run),)
        return ScoredMetric(values=rows, nulls=rows, drawn=drawn, victims=(victim,))

    rounds = join_parts([of("a", "1"), of("a", "1")])
    finding = _counted(specimen.finding(), rounds, Identification())
    assert (finding.scored, finding.hits) == (None, None)
    for others in ([of("a", "1"), of("a", "2")], [of("a", "1"), of("b", "1")]):
        finding = _counted(specimen.finding(), join_parts(others), Identification())
        assert (finding.scored, finding.hits) == (4, 4)
    # Two pictures of a person, who is one victim.
    person = {"1": frozenset({7}), "2": frozenset({7})}
    pictures = replace(join_parts([of("a", "1"), of("a", "2")]), people=person).by_people()
    assert len(pictures.values) == 1
    assert _counted(specimen.finding(), pictures, Identification()).scored == 4
