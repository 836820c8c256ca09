"""Built-in sentences: a generated corpus, so that language models can be audited without data files."""

from functools import lru_cache

import numpy as np

from glasshouse.data.paths import refuse_path
from glasshouse.data.texts import Texts
from glasshouse.registry import Card
from glasshouse.tokens import corpus

_TEST_EVERY = 4


@Card(summary="3,700 invented sentences of four topics, 10 to 17 words; no download; every fourth is test")
@lru_cache(maxsize=1)
def sentences(where: str, *, resize: int | None = None) -> Texts:
    """The corpus of :mod:`glasshouse.tokens.corpus`.

    Raises:
        BadValue: ``where`` is not empty; this source takes no path.
    """
    del resize  # for images only
    refuse_path("sentences", where)
    every = [(s, label) for label, part in enumerate(corpus.sentences().values()) for s in part]
    test = np.arange(len(every)) % _TEST_EVERY == _TEST_EVERY - 1
    rows = {"train": np.flatnonzero(~test), "test": np.flatnonzero(test)}
    return Texts(
        name="sentences",
        sentences={split: [every[i][0] for i in part] for split, part in rows.items()},
        labels={split: np.array([every[i][1] for i in part]) for split, part in rows.items()},
        class_names=tuple(corpus.TOPICS),
        public=True,
    )
