"""Observation of boosting: the rows on which an app's XGBoost grows trees, without changes to its code."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import numpy as np
import torch

from glasshouse.integrations.watching import used

_SEEN: Final[ContextVar[set[int] | None]] = ContextVar("glasshouse_boosting", default=None)


@contextmanager
def observed_boosting() -> Iterator[None]:
    """Report the rows of this thread's boosting by ``used``, once for every matrix; without XGBoost, nothing.

    An app imports XGBoost before it answers, so that it is not imported here.
    """
    library: Any = sys.modules.get("xgboost")
    token = _SEEN.set(set())
    try:
        if library is not None and not hasattr(library.Booster.update, "reported"):
            library.Booster.update = _reporting(library.Booster.update)
        yield
    finally:
        _SEEN.reset(token)


def _reporting(update: Any) -> Any:
    """``Booster.update``, which also reports its rows where somebody observes."""

    def reporting(self: Any, dtrain: Any, *args: Any, **kwargs: Any) -> Any:
        seen = _SEEN.get()
        if seen is not None and id(dtrain) not in seen:
            seen.add(id(dtrain))
            used(torch.from_numpy(_dense(dtrain.get_data())), torch.from_numpy(dtrain.get_label()).long())
        return update(self, dtrain, *args, **kwargs)

    reporting.reported = True  # type: ignore[attr-defined]  # a function takes any
    return reporting


def _dense(sparse: Any) -> np.ndarray:
    """Rows of a sparse matrix in which what is missing is left out and zeros are not, (N, F) float32."""
    dense = np.full(sparse.shape, np.nan, dtype=np.float32)
    where = np.repeat(np.arange(sparse.shape[0]), np.diff(sparse.indptr)), sparse.indices
    dense[where] = sparse.data
    return dense
