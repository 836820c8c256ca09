"""A finding counts examples only where each of them is a hit or a miss."""

import numpy as np
import pytest
import report_specimen as specimen

from glasshouse.audit.scoring.finding import _counted
from glasshouse.audit.scoring.score import ScoredMetric
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
