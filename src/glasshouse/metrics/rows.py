"""Metrics of claimed table rows: rows read exactly, and cells read.

Rows are paired by optimal assignment of the modality's distance, each claim once; a private row without a
claim is a miss. What counts as the same value is the schema's tolerance.

Shape letters: B private rows, R claimed ones, F entries of an encoded row, C columns.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glasshouse.errors import BadValue
from glasshouse.metrics.base import Hits, Metric, ScoreContext, rate_wording
from glasshouse.metrics.match import UNMATCHED, assign
from glasshouse.modalities.row import Row
from glasshouse.registry import Card


@final
@dataclass(frozen=True, kw_only=True)
class RowsExact(Hits):
    """1 for every private row of which all cells are claimed right, else 0; each claim counts once."""

